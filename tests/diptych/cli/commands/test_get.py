"""`get` as a person types it, against doubles of kubectl."""

from collections.abc import Callable
from typing import Any

import pytest
from support.cluster_objects import (
    FORBIDDEN,
    NOT_FOUND,
    Object,
    agent,
    condition,
    items,
    pod,
)

Type = Callable[..., Any]


TABLE = "NAME     MODEL   READY   REASON   REPLICAS   AGE\nhelper   m       True    Ready\n"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        pytest.param([], [], id="of the context's namespace"),
        pytest.param(["-n", "team"], ["--namespace=team"], id="of a namespace"),
        pytest.param(["-A"], ["--all-namespaces"], id="of all"),
        pytest.param(["-o", "wide"], ["--output=wide"], id="wide"),
        pytest.param(
            ["--context", "c", "--kubeconfig", "f"],
            ["--kubeconfig=f", "--context=c"],
            id="elsewhere",
        ),
    ],
)
def test_get_lists_agents_as_kubectl_does(
    typed: Type, cluster: Any, words: list[str], asked: list[str]
) -> None:
    cluster.answer("get agents.diptych.dev", out=TABLE)
    outcome = typed("get", *words)
    assert (outcome.code, outcome.out, outcome.err) == (0, TABLE, "")
    assert cluster.calls("kubectl", "get agents.diptych.dev", *asked)


def test_get_says_when_there_are_none(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", out="")
    outcome = typed("get")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith("there are no Agents in namespace default; make one with")


def test_get_describes_an_agent(typed: Type, cluster: Any) -> None:
    shortage = "server bank: connection refused; agent helper: no answer; in time; key a/b: none"
    cluster.answer(
        "get agents.diptych.dev",
        "helper",
        "--namespace=team",
        out=agent(
            "helper",
            condition("Progressing", "True", "RollingOut", "1 of 2 pods run the newest revision."),
            condition("Degraded", "True", "NotFound", shortage),
            condition("Resting", "Unknown", "NotAsked"),
            namespace="team",
            description="Helps.",
            model={"name": "m", "endpoint": "http://models/v1"},
            tools=[{"name": "bank"}, {"name": "post"}],
            agents=[{"name": "lawyer", "as": "counsel"}, {"url": "http://a"}],
        ),
    )
    cluster.answer("get", "pods", out=items(pod("helper-1"), pod("helper-2", is_ready=False)))
    outcome = typed("get", "team/helper")
    lines = outcome.out.splitlines()
    age = lines[8].split(", ")[1]
    assert (outcome.code, outcome.err) == (0, "")
    assert [line.replace(age, "AGE").rstrip() for line in lines] == [
        "✓ helper  in namespace team",
        "  Helps.",
        "",
        "  model      m at http://models/v1",
        "  address    http://helper.team:8000",
        "  tools      bank, post",
        "  agents     counsel, http://a",
        "  pods       1 of 2 ready",
        "    ✓ helper-1  Running, AGE, 2 restarts, on node-1",
        "    ✗ helper-2  Running, AGE, 2 restarts, on node-1",
        "  conditions",
        "    ✓ Accepted        Accepted: The manifest can be served.",
        "    ✓ Ready           Ready: 1 of 1 pods can take work.",
        f"    ✗ Degraded        NotFound: {shortage}",
        "    ! Progressing     RollingOut: 1 of 2 pods run the newest revision.",
        "    ! Resting         NotAsked",
        "  missing",
        "    ! server bank: connection refused",
        "    ! agent helper: no answer; in time",
        "    ! key a/b: none",
    ]
    assert cluster.calls("pods", "--selector=app.kubernetes.io/instance=helper", "--namespace=team")


def test_get_of_an_agent_with_a_script_says_so(typed: Type, cluster: Any) -> None:
    env = [{"name": "DEBUG_MOCK_RESPONSES", "value": "x"}]
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper", container={"env": env}))
    cluster.answer("get", "pods", out=items())
    out = typed("get", "helper").out
    assert "  model      a script (DEBUG_MOCK_RESPONSES)\n" in out
    assert "  pods       none\n" in out


def test_get_of_an_agent_that_nobody_has_seen(typed: Type, cluster: Any) -> None:
    new = {"metadata": {"name": "helper", "namespace": "default"}, "spec": {}}
    cluster.answer("get agents.diptych.dev", "helper", out=new)
    outcome = typed("get", "helper")
    assert outcome.code == 0
    assert outcome.out.startswith("✗ helper")
    assert "none: no operator has seen it yet" in outcome.out
    assert not cluster.calls("pods")


def test_get_prints_one_as_kubectl_does(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper"))
    cluster.answer("get agents.diptych.dev", "helper", "--output=yaml", out="kind: Agent\n")
    assert typed("get", "helper", "-o", "yaml").out == "kind: Agent\n"


@pytest.mark.parametrize(
    ("name", "there", "said"),
    [
        pytest.param(
            "helpr", [agent("helper"), agent("bank")], "; did you mean helper?", id="a name like it"
        ),
        pytest.param(
            "bank",
            [agent("helper"), agent("bank", namespace="team")],
            "; did you mean team/bank?",
            id="one in another namespace",
        ),
        pytest.param(
            "x",
            [agent("helper"), agent("bank")],
            "; did you mean bank or helper?",
            id="the few there",
        ),
        pytest.param(
            "x",
            [agent(f"helper{n}") for n in range(6)],
            "; `diptych get -A` lists all that there are",
            id="too many to name",
        ),
        pytest.param("x", [], "; `diptych get -A` lists all that there are", id="none there"),
    ],
)
def test_an_agent_that_does_not_exist_has_suggestions(
    typed: Type, cluster: Any, name: str, there: list[Object], said: str
) -> None:
    cluster.answer("get agents.diptych.dev", "--all-namespaces", out=items(*there))
    cluster.answer("get agents.diptych.dev", name, err=NOT_FOUND)
    for command in ("get", "logs"):
        outcome = typed(command, name)
        expected = f"error: there is no Agent {name} in namespace default{said}\n"
        assert (outcome.code, outcome.out, outcome.err) == (1, "", expected)


def test_without_access_to_all_namespaces_one_is_searched(typed: Type, cluster: Any) -> None:
    cluster.answer(
        "get agents.diptych.dev", "--namespace=team", out=items(agent("helper", namespace="team"))
    )
    cluster.answer("get agents.diptych.dev", "--all-namespaces", err=FORBIDDEN)
    cluster.answer("get agents.diptych.dev", "helpr", err=NOT_FOUND)
    outcome = typed("get", "team/helpr")
    assert outcome.err == "error: there is no Agent helpr in namespace team; did you mean helper?\n"


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            condition("Degraded", "False", "NothingMissing", "The agent misses nothing."),
            "    ✓ not Degraded    NothingMissing: The agent misses nothing.",
        ),
        (
            condition("Progressing", "False", "UpToDate", "All pods run the newest revision."),
            "    ✓ not Progressing UpToDate: All pods run the newest revision.",
        ),
        (
            condition("Progressing", "False", "WriteFailed", "A webhook is gone."),
            "    ✗ not Progressing WriteFailed: A webhook is gone.",
        ),
        (
            condition("Stalled", "True", "WriteFailed", "A webhook is gone."),
            "    ✗ Stalled         WriteFailed: A webhook is gone.",
        ),
        (
            condition("Reconciling", "True", "RollingOut", "1 of 2 pods."),
            "    ! Reconciling     RollingOut: 1 of 2 pods.",
        ),
        (
            condition("AccessOpen", "False", "TokenRequired", "Callers must prove who they are."),
            "    ✓ not AccessOpen  TokenRequired: Callers must prove who they are.",
        ),
        (
            condition("AccessOpen", "True", "AccessOpen", "Everybody may do everything."),
            "    ! AccessOpen      AccessOpen: Everybody may do everything.",
        ),
        (
            condition("Available", "False", "ScaledToZero", "No pod can take work."),
            "    ! Available       ScaledToZero: No pod can take work.",
        ),
    ],
)
def test_a_condition_reads_as_it_is(typed: Type, cluster: Any, found: Object, line: str) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out=agent("helper", found))
    cluster.answer("get", "pods", out=items())
    assert line in typed("get", "helper").out.splitlines()


def test_what_is_wrong_and_what_to_do_come_first(typed: Type, cluster: Any) -> None:
    told = agent("helper")
    told["status"]["advice"] = "Serving, but: A webhook is gone. Mend that."
    cluster.answer("get agents.diptych.dev", "helper", out=told)
    cluster.answer("get", "pods", out=items())
    assert (
        typed("get", "helper").out.splitlines()[1]
        == "  Serving, but: A webhook is gone. Mend that."
    )


def test_an_old_status_is_not_shown_as_good(typed: Type, cluster: Any) -> None:
    old = agent("helper")
    old["metadata"]["generation"] = 3
    old["status"]["observedGeneration"] = 2
    cluster.answer("get agents.diptych.dev", "helper", out=old)
    cluster.answer("get", "pods", out=items())
    lines = typed("get", "helper").out.splitlines()
    assert lines[0].startswith("✗ helper")
    text = "    ✗ StatusIsOld: the status is of generation 2 and the manifest is of 3; "
    assert any(line.startswith(text) for line in lines)
    assert not any(line.startswith("    ✓") for line in lines)
