"""The two sentences for somebody who is tired."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.agent_states import STATES
from support.agents import agent
from support.live_objects import deployment

import diptych_operator
from diptych_operator.status import advice as module
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import MissingDependency, StatusInputs, agent_status

NOW = "2026-11-21T12:00:00Z"
PINNED = agent(tools=[{"name": "t", "url": "http://t", "pin": [{"tool": "add"}]}])
NOTHING = "Serving. Nothing is wrong, and there is nothing to do."


def told(inputs):
    text = agent_status(PINNED, inputs, NOW)["advice"]
    assert text == NOTHING or f" since {NOW}: " in text
    return text.replace(f" since {NOW}: ", ": ", 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("all is well", NOTHING),
        (
            "not asked yet",
            (
                "Serving, but: No pod has answered the operator yet, so missing dependencies are "
                "unknown. Wait a minute; if it stays so, let the operator reach the pods' port "
                "8000."
            ),
        ),
        (
            "a quota",
            (
                "Serving, but: The cluster refuses the pods: exceeded quota: few. Raise the quota "
                "or change the rule that refuses the pods, or ask for less."
            ),
        ),
        (
            "a rejected manifest",
            (
                "Not serving: No such field. Correct the Agent's manifest and apply it; "
                "`diptych check FILE` names the field."
            ),
        ),
        (
            "a tool server that is away",
            (
                "Serving, but not with all it uses: server calc: away. Bring the tool server back, "
                "sign in to it, or correct its entry in spec.tools."
            ),
        ),
        (
            "a first pod starts",
            (
                "Not serving: 0 of 1 pods can take work. Wait a minute; if nothing has changed by "
                "then, read the operator's log."
            ),
        ),
        (
            "scaled to none",
            (
                "Not serving: The agent is scaled to no pods, as its manifest says. Set "
                "spec.replicas, or `kubectl scale`, for it to serve."
            ),
        ),
    ],
)
def test_it_can_be_read_by_somebody_who_is_tired(name, text):
    assert told(STATES[name][0]) == text


def test_an_agent_that_serves_during_a_rollout_is_told_of_the_rollout():
    began = {"type": "Progressing", "status": "True", "lastUpdateTime": NOW}
    live = deployment(1, updated=1, total=2, available=1, conditions=[began])
    rollout = "Serving, but: A rollout is going on: 1 of 1 pods of the newest revision are made. "
    text = told(StatusInputs(deployment=live, missing_dependencies=()))
    assert text == (
        f"{rollout}Wait until 2026-11-21T12:10:00Z; if it is not done by then, this says what it "
        "waits for."
    )
    live["spec"]["progressDeadlineSeconds"] = 60
    assert "Wait until 2026-11-21T12:01:00Z;" in told(StatusInputs(deployment=live))


def test_what_is_wrong_is_one_sentence():
    image = (
        "The image x:1 cannot be pulled; correct spec.container.image, or make the image "
        "available. dial tcp: i/o timeout"
    )
    told_of_image = told(StatusInputs(blocker=Problem("Denied", image)))
    assert told_of_image.startswith("Not serving: The image x:1 cannot be pulled. Change")
    api = "cannot be applied (team/a; apps/v1, Kind=Deployment): .spec.x: no field"
    assert "Kind=Deployment): .spec.x: no field. Change" in told(
        StatusInputs(blocker=Problem("Denied", api))
    )
    node = "No node takes the pod: 0/1 nodes are available: 1 Insufficient cpu. no new claims"
    told_of_node = told(StatusInputs(blocker=Problem("Denied", node)))
    assert "1 Insufficient cpu. Change" in told_of_node
    two = [MissingDependency("server", "a", "away"), MissingDependency("key", "b/c", "missing")]
    both = told(
        StatusInputs(deployment=STATES["all is well"][0].deployment, missing_dependencies=two)
    )
    assert "server a: away; key b/c: missing. Mend" in both


def test_the_gravest_comes_first():
    inputs = StatusInputs(
        rejection=Problem("InvalidUrl", "The URL is none."),
        unresolved=[Problem("AgentNotFound", "Agent a is not there")],
        missing_dependencies=[MissingDependency("server", "s", "away")],
    )
    assert told(inputs).startswith("Not serving: The URL is none.")


def test_nobody_is_told_to_wait_for_what_does_not_come_by_itself():
    rolling, _ = STATES["a first pod starts"]
    lonely = replace(
        rolling, unresolved=[Problem("AgentNotFound", "Agent a is not there; create it")]
    )
    assert told(lonely) == (
        "Not serving yet, and not with all it uses: Agent a is not there. Create that Agent, or "
        "take it out of spec.agents."
    )


def test_a_long_message_is_cut_and_what_to_do_stays():
    inputs = StatusInputs(blocker=Problem("Denied", "word " * 1000))
    assert len(told(inputs)) < 1_000
    assert told(inputs).endswith("or have the rule changed.")


def test_every_reason_has_a_remedy():
    folder = Path(diptych_operator.__file__).parent
    texts = [path.read_text() for path in folder.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'Problem\(\s*"(\w+)"', text)}
    named |= {name for text in texts for name in re.findall(r'ManifestError\(\s*"(\w+)"', text)}
    named |= set(re.findall(r'": "(\w+)",\n', (folder / "status" / "conditions.py").read_text()))
    of_manifest = {"PodTemplateInvalid", "TooLarge", "InvalidUrl", "Refused"}
    assert {"ImagePullFailed", "StoreUnavailable", "ToolServerUnavailable"} <= named
    assert named - of_manifest - set(module._REMEDIES) == set()
