"""A coordinator and two workers, each a pod of its own, that speak A2A through their Services."""

from harness.objects import agent, delegations
from harness.probe import Probe
from harness.space import Space

COORDINATOR = [delegations(writer="A slogan", analyst="A number"), "{}", "Both are back."]


def test_a_coordinator_asks_two_workers_and_both_sides_have_it_on_record(space: Space):
    space.serve(
        agent("writer", ["{}", "Two wheels, no worries."]),
        agent("analyst", ["{}", "Thirty-two."]),
        agent("coordinator", COORDINATOR, agents=[{"name": "writer"}, {"name": "analyst"}]),
    )
    assert space.probe.ask("coordinator", session="s").content == "Both are back."

    events = space.probe.events("coordinator", "s")
    types = [event["event_type"] for event in events]
    assert types[:3] == ["user_message", "delegation_request", "delegation_request"]
    assert sorted(types[3:5]) == ["delegation_response"] * 2
    assert types[5:] == ["agent_response"]
    answers = {event["content"] for event in events if event["event_type"] == "delegation_response"}
    assert answers == {"Two wheels, no worries.", "Thirty-two."}

    inside = Probe(space.kubectl, space.pod_of("coordinator"))
    for worker, task in {"writer": "A slogan", "analyst": "A number"}.items():
        assert space.probe.events(worker) == []  # they are the coordinator's, and nobody else's
        proof = {"authorization": f"Bearer {space.token_of_peer('coordinator', worker)}"}
        record = inside.request(f"http://{worker}:8000/memory/events", headers=proof).json["events"]
        assert [event["event_type"] for event in record] == ["user_message", "agent_response"]
        assert task in record[0]["content"]
        assert record[0]["session_id"] != "s"  # each delegation has a context of its own


# As the founding text has it ("For Kubernetes E2E tests, configure via the Agent CRD").
DOCUMENTED = r"""
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata:
  name: documented
spec:
  agents:
  - name: worker
  container:
    env:
    - name: DEBUG_MOCK_RESPONSES
      value: '["{\"agent\": \"worker\", \"task\": \"process data\"}", "{}", "Done."]'
"""


def test_the_founding_texts_manifest_works_as_it_stands(space: Space):
    space.kubectl("apply", "-f", "-", stdin=DOCUMENTED)
    space.serve(agent("worker", ["{}", "Processed."]))
    space.kubectl.wait_for_condition("documented", "ResolvedRefs", "True")
    space.kubectl.wait_until_ready("documented")
    assert space.probe.ask("documented", session="s").content == "Done."
    assert space.probe.event_types("documented", "s") == [
        "user_message",
        "delegation_request",
        "delegation_response",
        "agent_response",
    ]
