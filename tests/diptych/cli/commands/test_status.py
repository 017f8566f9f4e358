"""`status` as a person types it, against doubles of kubectl."""

from collections.abc import Callable
from typing import Any

import pytest
from support.cluster_objects import (
    CRD,
    FORBIDDEN,
    NOT_FOUND,
    NOT_READY,
    Object,
    agent,
    condition,
    deployment,
    items,
    lease,
    pod,
)

Type = Callable[..., Any]


OWN_LEASE = ["leases.coordination.k8s.io", "--namespace=diptych-system"]
OPERATOR = "diptych-system/diptych 0.1.0, image diptych:0.1.0"


def test_status_when_all_is_well(typed: Type, cluster: Any) -> None:
    outcome = typed("status")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        f"✓ operator  {OPERATOR}, 1 of 1 ready, diptych-1 leads",
        "✓ CRD  agents.diptych.dev v1alpha1, of chart diptych-0.1.0",
        "✓ agents  1 of 1 ready",
    ]
    assert cluster.calls("get agents.diptych.dev", "--all-namespaces")


def test_status_names_agents_that_are_not_ready_and_why(typed: Type, cluster: Any) -> None:
    missing = condition("Degraded", "True", "KeyMissing", "key models/api-key: not there")
    refused = condition("Accepted", "False", "NameConflict", "Service helper is not ours.")
    kept = condition("Ready", "True", "LastGoodRevision", "1 of 1 pods can take work.")
    cluster.answer(
        "get agents.diptych.dev",
        "--namespace=team",
        out=items(
            agent("a", NOT_READY, namespace="team"),
            agent("b", missing, namespace="team"),
            agent("c", refused, kept, namespace="team"),
            agent("d", namespace="team"),
        ),
    )
    outcome = typed("status", "-n", "team")
    assert outcome.code == 1
    assert outcome.out.splitlines()[2:] == [
        "✗ agents  3 of 4 ready",
        "✗   team/a  ImagePullFailed: The image x cannot be pulled.",
        "!   team/b  KeyMissing: key models/api-key: not there",
        "!   team/c  NameConflict: Service helper is not ours.",
    ]


def test_status_tells_how_many_schedules_there_are_and_which_is_next(
    typed: Type, cluster: Any
) -> None:
    found = agent("a", namespace="team")
    found["status"]["schedules"] = [
        {"name": "suspended"},
        {"name": "late", "next": "2026-11-29T22:00:00Z"},
        {"name": "morning", "next": "2026-11-29T07:00:00Z"},
    ]
    cluster.answer("get agents.diptych.dev", "--namespace=team", out=items(found))
    outcome = typed("status", "-n", "team")
    assert outcome.out.splitlines()[3:] == [
        "✓ schedules  3; next is team/a morning at 2026-11-29T07:00:00Z",
    ]


def test_status_tells_which_shared_objects_are_not_ready(typed: Type, cluster: Any) -> None:
    refused = condition("Ready", "False", "KeyRefused", "The endpoint answers 401.")
    apis = items(agent("house", refused, namespace="team"), agent("spare", namespace="team"))
    cluster.answer("get modelapis.diptych.dev", "--namespace=team", out=apis)
    cluster.answer(
        "get mcpservers.diptych.dev", "--namespace=team", out=items(agent("calc", namespace="team"))
    )
    outcome = typed("status", "-n", "team")
    assert outcome.code == 1
    assert outcome.out.splitlines()[-3:] == [
        "✗ ModelAPIs  1 of 2 ready",
        "✗   team/house  KeyRefused: The endpoint answers 401.",
        "✓ MCPServers  1 of 1 ready",
    ]


def old_status() -> Object:
    old = agent("a")
    old["metadata"]["generation"], old["status"]["observedGeneration"] = 3, 2
    return old


def told(advice: str, *conditions: Object) -> Object:
    found = agent("a", *conditions)
    found["status"]["advice"] = advice
    return found


WAITS = condition("Reconciling", "True", "WaitsForOthers", "The platform has changed.")


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([], 0, "✓ agents  there are none"),
        (
            [told("Not serving: Push the image.", NOT_READY)],
            1,
            "✗   default/a  ImagePullFailed: Not serving: Push the image.",
        ),
        (
            [agent("a", condition("Stalled", "True", "WriteFailed", "A webhook is gone."))],
            0,
            "!   default/a  WriteFailed: A webhook is gone.",
        ),
        (
            [agent("a", condition("AccessOpen", "True", "AccessOpen", "Everybody may."))],
            0,
            "!   default/a  AccessOpen: Everybody may.",
        ),
        (
            [agent("a", condition("Degraded", "Unknown", "NotAsked", "No pod has answered."))],
            0,
            "!   default/a  NotAsked: No pod has answered.",
        ),
        (
            [agent("a", WAITS), agent("b"), agent("c")],
            0,
            "! rollout  1 of 3 wait for the rollout of others (default/a)",
        ),
        (
            [{"metadata": {"name": "a", "namespace": "default"}, "spec": {}}],
            1,
            (
                "✗   default/a  NotSeen: No operator has seen it yet; `diptych status` tells "
                "whether one is at work."
            ),
        ),
        (
            [old_status()],
            1,
            (
                "✗   default/a  StatusIsOld: the status is of generation 2 and the manifest is of "
                "3; `diptych status` tells whether an operator is at work."
            ),
        ),
    ],
)
def test_status_says_what_is_notable_about_agents(
    typed: Type, cluster: Any, found: list[Object], code: int, said: str
) -> None:
    cluster.answer("get agents.diptych.dev", "--all-namespaces", out=items(*found))
    outcome = typed("status")
    assert outcome.code == code
    assert said in outcome.out.splitlines()


def test_status_advises_on_the_gravest_thing_about_an_agent_that_is_ready(
    typed: Type, cluster: Any
) -> None:
    refused = condition("Accepted", "False", "Refused", "The API says a lot.")
    missing = condition("Degraded", "True", "KeyMissing", "key a: not there")
    told = agent("a", refused, missing)
    told["status"]["advice"] = "Serving, but: No such field. Correct the Agent's manifest."
    opened = agent("b", condition("AccessOpen", "True", "AccessOpen", "Everybody may."))
    opened["status"]["advice"] = "Serving. Nothing is wrong, and there is nothing to do."
    cluster.answer("get agents.diptych.dev", "--all-namespaces", out=items(told, opened))
    lines = typed("status").out.splitlines()
    advised = "Refused: Serving, but: No such field. Correct the Agent's manifest."
    assert f"!   default/a  {advised}" in lines
    assert "!   default/a  KeyMissing: key a: not there" in lines
    assert "!   default/b  AccessOpen: Everybody may." in lines


def test_one_cause_of_many_agents_is_one_line(typed: Type, cluster: Any) -> None:
    def silent(name: str, node: str, second: int) -> Object:
        found = agent(name, condition("Ready", "False", "NodeSilent", "It is."))
        since = f"2026-11-27T21:00:{second:02}Z"
        found["status"]["advice"] = (
            f"Not serving since {since}: Pod {name}-5d4f7c9b8-x2x4z: node {node} is silent "
            f"since {since}. kubectl describe pods -l x={name}."
        )
        return found

    found = [silent(f"a{n}", "worker", n) for n in range(7)]
    cluster.answer("get agents.diptych.dev", out=items(*found, silent("b", "other", 1)))
    lines = typed("status").out.splitlines()
    names = ", ".join(f"default/a{n}" for n in range(5))
    said = "NodeSilent: " + found[0]["status"]["advice"]
    assert lines[3] == f"✗   7 agents  {said} ({names}, …)"
    assert lines[4].startswith("✗   default/b  NodeSilent: ")
    assert len(lines) == 5


def test_what_is_said_as_unresolved_is_not_said_again_as_missing(typed: Type, cluster: Any) -> None:
    refs = condition("ResolvedRefs", "False", "ServiceNotAllowed", "Service s is not yours.")
    degraded = condition("Degraded", "True", "ServiceNotAllowed", "Service s is not yours.")
    cluster.answer("get agents.diptych.dev", out=items(agent("a", refs, degraded)))
    assert typed("status").out.count("Service s is not yours.") == 1


@pytest.mark.parametrize(
    ("claims", "as_of"),
    [
        pytest.param({"out": items(lease(age=3600))}, "20", id="by its claims"),
        pytest.param({"err": FORBIDDEN}, "an unknown time", id="which may not be seen"),
    ],
)
def test_without_an_operator_the_agents_are_as_they_were(
    typed: Type, cluster: Any, claims: Object, as_of: str
) -> None:
    cluster.answer("deployments.apps", out=items())
    cluster.answer("leases.coordination.k8s.io", "--all-namespaces", **claims)
    line = typed("status").out.splitlines()[2]
    assert line.startswith(f"! agents  1 of 1 ready as of {as_of}")
    assert line.endswith("; no operator is at work")


def test_two_operators_that_are_down_serve_nothing_whatever_their_claims_say(
    typed: Type, cluster: Any
) -> None:
    down = [deployment(available=0), deployment(available=0)]
    down[1]["metadata"]["namespace"] = "second"
    cluster.answer("deployments.apps", out=items(*down))
    cluster.answer("leases.coordination.k8s.io", "--namespace=second", out=lease())
    cluster.answer("get pods", out=items())
    claim = {"metadata": {"namespace": "team"}, "spec": {"holderIdentity": "second/diptych"}}
    cluster.answer("leases.coordination.k8s.io", "--all-namespaces", out=items(claim))
    agents = next(line for line in typed("status").out.splitlines() if "agents  " in line)
    assert agents == "! agents  1 of 1 ready as of an unknown time; no operator is at work"


def test_an_operator_that_was_killed_for_its_memory_is_said_to_be_with_the_value_to_raise(
    typed: Type, cluster: Any
) -> None:
    killed = pod("diptych-1", is_ready=False)
    killed["spec"]["containers"] = [{"resources": {"limits": {"memory": "512Mi"}}}]
    end = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-11-27T21:00:00Z"}
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    killed["status"]["containerStatuses"] = [
        {"state": waits, "lastState": {"terminated": end}, "restartCount": 4, "image": "x"}
    ]
    cluster.answer("deployments.apps", out=items(deployment(available=0)))
    cluster.answer("get pods", out=items({"kind": "Pod", **killed}))
    assert typed("status").out.splitlines()[0] == (
        f"✗ operator  {OPERATOR}, 0 of 1 ready, diptych-1 leads; OOMKilled: 4 restarts, "
        "the last at 2026-11-27T21:00:00Z; its limit of memory is 512Mi: raise "
        "resources.limits.memory of the chart"
    )


@pytest.mark.parametrize(
    ("words", "what", "said"),
    [
        pytest.param(
            ["deployments.apps"],
            {"out": items()},
            "✗ operator  none is installed; charts/diptych/README.md",
            id="none",
        ),
        pytest.param(
            ["deployments.apps"],
            {"out": items(deployment(available=0))},
            "0 of 1 ready, diptych-1 leads; see `kubectl describe pods -n diptych-system`",
            id="an operator that is down",
        ),
        pytest.param(
            OWN_LEASE, {"err": NOT_FOUND}, "no operator is the leader; see", id="no Lease"
        ),
        pytest.param(
            OWN_LEASE,
            {"out": lease(holder="")},
            "no operator is the leader; see",
            id="a Lease that was released",
        ),
        pytest.param(
            OWN_LEASE,
            {"out": lease(age=600)},
            "no operator is the leader; diptych-1 last renewed its Lease at 20",
            id="a leader that is gone",
        ),
        pytest.param(
            ["customresourcedefinitions"],
            {"err": NOT_FOUND},
            "✗ CRD  agents.diptych.dev is not installed; the chart installs it",
            id="no CRD",
        ),
        pytest.param(
            ["customresourcedefinitions"],
            {"out": {**CRD, "status": {}}},
            "✗ CRD  agents.diptych.dev is there, and the API does not serve it (yet)",
            id="a CRD that is not served",
        ),
    ],
)
def test_status_says_what_is_wrong_with_the_installation(
    typed: Type, cluster: Any, words: list[str], what: Object, said: str
) -> None:
    cluster.answer(*words, **what)
    outcome = typed("status")
    assert outcome.code == 1
    assert said in outcome.out


def test_objects_that_are_forbidden_are_no_fault(typed: Type, cluster: Any) -> None:
    cluster.answer(*OWN_LEASE, err=FORBIDDEN)
    assert "1 of 1 ready, you may not see its leader" in typed("status").out
    for words in ("deployments.apps", "customresourcedefinitions"):
        cluster.answer(words, err=FORBIDDEN)
    outcome = typed("status", "-n", "default")
    assert outcome.code == 0
    assert (
        "! operator  you may not see it: the cluster does not allow it: it is forbidden"
        in outcome.out
    )
    assert "! CRD  you may not see it" in outcome.out


@pytest.mark.parametrize(
    ("words", "end"),
    [
        pytest.param([], "it is forbidden; give the --namespace that you may see", id="of all"),
        pytest.param(["-n", "a"], "it is forbidden", id="of one namespace"),
    ],
)
def test_agents_that_are_forbidden_are_no_success(
    typed: Type, cluster: Any, words: list[str], end: str
) -> None:
    cluster.answer("get agents.diptych.dev", err=FORBIDDEN)
    outcome = typed("status", *words)
    assert outcome.code == 1
    last = outcome.out.splitlines()[-1]
    assert last == f"✗ agents  you may not see them: the cluster does not allow it: {end}"


def test_status_says_which_of_two_operators_serves_what(typed: Type, cluster: Any) -> None:
    other = deployment()
    other["metadata"]["namespace"] = "second"
    cluster.answer("deployments.apps", out=items(deployment(), other))
    cluster.answer("leases.coordination.k8s.io", "--namespace=second", out=lease())
    claims = [
        {"metadata": {"namespace": name}, "spec": {"holderIdentity": "diptych-system/diptych"}}
        for name in ("team", "legal")
    ]
    cluster.answer("leases.coordination.k8s.io", "--all-namespaces", out=items(*claims))
    lines = typed("status").out.splitlines()
    assert "!   diptych-system/diptych  serves legal, team" in lines
    assert "!   second/diptych  stands back, or has no Agents" in lines
