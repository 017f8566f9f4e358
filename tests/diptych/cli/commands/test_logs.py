"""`logs` as a person types it, against doubles of kubectl."""

from collections.abc import Callable
from typing import Any

from support.cluster_objects import (
    NOT_READY,
    agent,
    condition,
    items,
    pod,
)

Type = Callable[..., Any]


def test_logs_of_one_pod_are_copied_unchanged(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper"))
    cluster.answer("get", "pods", out=items(pod("helper-1")))
    cluster.answer("logs", out="one\ntwö\n")
    outcome = typed("logs", "helper")
    assert (outcome.code, outcome.out, outcome.err) == (0, "one\ntwö\n", "")
    (call,) = cluster.calls("logs")
    assert call == [
        "kubectl",
        "--namespace=default",
        "logs",
        "--selector=app.kubernetes.io/instance=helper",
        "--all-containers",
        "--tail=-1",
    ]


def test_logs_of_several_pods_name_them(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper"))
    cluster.answer("get", "pods", out=items(pod("a", containers=4), pod("b", containers=4)))
    cluster.answer("logs", out="")
    typed("logs", "helper", "-f", "--since", "5m", "--tail", "3", "-p")
    (call,) = cluster.calls("logs")
    options = [
        "--tail=3",
        "--prefix",
        "--follow",
        "--max-log-requests=8",
        "--since=5m",
        "--previous",
    ]
    assert call[-6:] == options


def test_logs_that_are_refused_say_why(typed: Type, cluster: Any) -> None:
    waiting = 'Error from server (BadRequest): container "agent" in pod "a" is waiting to start'
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper"))
    cluster.answer("get", "pods", out=items(pod("a")))
    cluster.answer("logs", out="first\n", err=waiting)
    outcome = typed("logs", "helper")
    assert (outcome.code, outcome.out) == (1, "first\n")
    assert (
        outcome.err == 'error: the cluster says: container "agent" in pod "a" is waiting to start\n'
    )


def test_logs_of_an_agent_without_pods_say_why(typed: Type, cluster: Any) -> None:
    refused = condition("Accepted", "False", "NameConflict", "Service helper is not ours.")
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper", refused, NOT_READY))
    cluster.answer("get", "pods", out=items())
    outcome = typed("logs", "helper")
    assert outcome.code == 1
    assert outcome.err == (
        "error: Agent default/helper has no pods: NameConflict: Service helper is not ours.\n"
    )
