"""Faults made by hand: within 20 s status and Warning name them; 20 s after their end, no more.

`test_fault_table.py` has many more, nightly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from harness.faults import changed, gone_webhook, pod_quota
from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent
from harness.space import Space
from harness.telling import say

HELLO = ["{}", "Hello!"]
SECONDS = 20


@dataclass(frozen=True)
class Fault:
    """How to make a fault and mend it, and which condition with which reason tells of it."""

    name: str
    make: Callable[[Space], Any]
    mend: Callable[[Space], Any]
    condition: str
    status: str
    reason: str


def patch(space: Space, **spec: Any) -> None:
    space.kubectl.apply(agent("hello", HELLO, **spec))


def pause(space: Space) -> None:
    space.kubectl("rollout", "pause", "deployment/hello")
    changed("hello")(space)


def image(space: Space) -> None:
    bad = agent("hello", HELLO)
    bad["spec"]["container"]["image"] = "registry.invalid/nothing:none"
    space.kubectl.apply(bad)


FAULTS = [
    Fault(
        "a mistyped field of podTemplate",
        lambda space: patch(space, podTemplate={"spec": {"nodeSelectr": {"a": "b"}}}),
        patch,
        *("Accepted", "False", "Refused"),
    ),
    Fault(
        "an image that cannot be pulled",
        image,
        patch,
        *("Ready", "False", "ImagePullFailed"),
    ),
    Fault(
        "a webhook that is gone",
        lambda space: gone_webhook(space, "hello"),
        lambda space: space.kubectl.delete("validatingwebhookconfiguration", space.name),
        *("Progressing", "False", "WriteFailed"),
    ),
    Fault(
        "a quota that blocks a rollout",
        lambda space: pod_quota(space, "hello"),
        lambda space: space.kubectl.delete("quota", "few"),
        *("Progressing", "False", "PodsRefused"),
    ),
    Fault(
        "a paused Deployment",
        pause,
        lambda space: space.kubectl("rollout", "resume", "deployment/hello"),
        *("Ready", "False", "Paused"),
    ),
]


@pytest.mark.long
def test_faults_are_named_in_time_and_go_in_time(space: Space):
    space.serve(agent("hello", HELLO))
    for fault in FAULTS:
        fault.make(space)
        _is_told(space, fault.condition, fault.status, fault.reason)
        assert space.probe.ask("hello").content == "Hello!"  # the last good revision serves
        fault.mend(space)
        eventually(
            lambda fault=fault: _is_over(space, fault),
            seconds=SECONDS,
            what=f"{fault.reason} is not said any more",
        )
        space.kubectl.wait_for_condition("hello", "Ready", "True", reason="Ready")
        space.kubectl("rollout", "status", "deployment/hello", "--timeout=90s")


def _is_over(space: Space, fault: Fault) -> bool:
    condition = space.kubectl.condition("hello", fault.condition)
    return condition["reason"] != fault.reason and not space.kubectl.condition("hello", "Stalled")


def test_a_model_that_is_away_is_named_and_goes_when_it_comes(space: Space):
    model = {"name": "m", "endpoint": "http://model:8000/v1"}
    space.serve(agent("hello", None, model=model))
    degraded = _is_told(space, "Degraded", "True", "ServiceNotFound")
    assert "model m: unreachable since 20" in degraded["message"]
    space.serve_model()
    space.kubectl.wait_for_condition("hello", "Degraded", "False", seconds=SECONDS)


def test_a_store_that_is_away_is_named_and_goes_when_it_comes(space: Space):
    space.serve_redis()
    redis = {"serviceRef": {"name": "redis"}}
    space.serve(agent("hello", HELLO, sessions={"redis": redis}))
    space.kubectl("scale", "deployment/redis", "--replicas=0")
    _is_told(space, "Ready", "False", "StoreUnavailable")
    space.kubectl("scale", "deployment/redis", "--replicas=1")
    space.kubectl("rollout", "status", "deployment/redis", "--timeout=60s")
    space.kubectl.wait_for_condition("hello", "Ready", "True", reason="Ready", seconds=SECONDS)


def test_the_network_policy_of_a_deleted_agent_stays_until_its_pod_is_gone(space: Space):
    space.serve(agent("hello", HELLO))
    space.kubectl.delete("agents.diptych.dev", "hello", wait=False)
    eventually(lambda: not space.kubectl.find("deployment", "hello"), seconds=SECONDS, what="gone")
    seen = 0
    while space.kubectl.list("pods", AGENT_PODS):
        policy = space.kubectl.find("networkpolicy", "hello")
        assert policy or not space.kubectl.list("pods", AGENT_PODS)
        seen += bool(policy)
    assert seen  # the pod takes 5 s to end
    eventually(lambda: not space.kubectl.find("networkpolicy", "hello"), seconds=60, what="gone")


def _is_told(space: Space, kind: str, status: str, reason: str) -> dict[str, Any]:
    """Wait until a condition and a Warning name a fault; give the condition."""
    found = space.kubectl.wait_for_condition("hello", kind, status, reason=reason, seconds=SECONDS)

    def warned() -> bool:
        fields = f"--field-selector=type=Warning,reason={reason}"
        return "agent/hello" in space.kubectl("get", "events", fields)

    eventually(warned, seconds=SECONDS, what=f"a Warning {reason}")
    say(f"{kind}={status} {reason}: {found['message'][:120]}")
    return found
