"""Keys are read where they are mounted, taken up when they change, and nobody else's affair."""

import hashlib

from harness.kubectl import eventually
from harness.objects import agent, call, secret
from harness.release import Release
from harness.space import Space

_FORBIDDEN = (
    "get secrets",
    "list secrets",
    "watch secrets",
    "create pods",
    "get pods/log",
    "create pods/exec",
    "create serviceaccounts/token",
    "patch clusterroles.rbac.authorization.k8s.io",
    "bind roles.rbac.authorization.k8s.io",
    "impersonate users",
    "delete agents.diptych.dev",
    "delete namespaces",
)


def test_a_rotated_key_of_the_model_is_taken_up_without_a_restart(space: Space):
    space.serve_model()
    space.kubectl.apply(secret("models", api_key="old"))
    reference = {"secretKeyRef": {"name": "models", "key": "api-key"}}
    model = {"name": "stub", "endpoint": "http://model:8000/v1", "apiKey": reference}
    space.serve(agent("keyed", None, model=model))
    assert space.probe.ask("keyed").content == "The key is old."
    pods = space.pods()
    space.kubectl.apply(secret("models", api_key="new"))
    space.look_after_mounts("keyed")
    eventually(
        lambda: space.probe.ask("keyed").content == "The key is new.",
        seconds=90,
        what="the new key is used",
    )
    assert space.pods() == pods


def test_a_header_for_a_tool_server_comes_from_a_secret(space: Space):
    space.serve_tools()
    space.kubectl.apply(secret("bank", token="s3cret-token"))
    header = {"name": "X-Key", "valueFrom": {"secretKeyRef": {"name": "bank", "key": "token"}}}
    tools = [{"name": "tools", "serviceRef": {"name": "tools"}, "headers": [header]}]
    space.serve(agent("keyed", [call("whoami"), "{}", "Done."], tools=tools))
    space.probe.ask("keyed", session="s")
    results = [e for e in space.probe.events("keyed", "s") if e["event_type"] == "tool_result"]
    digest = hashlib.sha256(b"s3cret-token").hexdigest()
    assert [event["content"] for event in results] == [f"key={digest}"]
    made = space.kubectl("get", "configmaps,deployments,agents.diptych.dev", "-o", "yaml")
    assert "s3cret" not in made


def test_the_operator_may_not_read_secrets_nor_pods_logs(diptych: Release):
    may = diptych.kubectl.permissions_of("diptych")
    assert may("patch", "deployments.apps")
    for action in _FORBIDDEN:
        verb, kind = action.split()
        assert not may(verb, kind), action
