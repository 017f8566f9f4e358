"""`status`, `get` and `logs` as a person types them, against doubles of kubectl."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

Type = Callable[..., Any]
Object = dict[str, Any]
OPERATOR = "diptych-system/diptych 0.1.0, image diptych:0.1.0"
CRD: Object = {
    "metadata": {"labels": {"helm.sh/chart": "diptych-0.1.0"}},
    "spec": {"versions": [{"name": "v1alpha1", "served": True}, {"name": "v0", "served": False}]},
    "status": {"conditions": [{"type": "Established", "status": "True"}]},
}
NOT_FOUND = 'Error from server (NotFound): agents.diptych.dev "x" not found'
FORBIDDEN = "Error from server (Forbidden): it is forbidden"


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def agent(name: str, *conditions: Object, namespace: str = "default", **spec: object) -> Object:
    given = {c["type"]: c for c in conditions}
    well = (
        condition("Accepted", "True", "Accepted", "The manifest can be served."),
        condition("Ready", "True", "Ready", "1 of 1 pods can take work."),
        condition("Degraded", "False", "NothingMissing", "The agent misses nothing."),
    )
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
        "status": {
            "selector": f"app.kubernetes.io/instance={name}",
            "url": f"http://{name}.{namespace}:8000",
            "conditions": list(({c["type"]: c for c in well} | given).values()),
        },
    }


NOT_READY = condition("Ready", "False", "ImagePullFailed", "The image x cannot be pulled.")


def pod(name: str, *, is_ready: bool = True, containers: int = 1) -> Object:
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "node-1", "containers": [{}] * containers},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [{"restartCount": 2}],
        },
    }


def items(*objects: Mapping[str, Any]) -> Object:
    return {"items": list(objects)}


def deployment(*, available: int = 1) -> Object:
    return {
        "kind": "Deployment",
        "metadata": {
            "name": "diptych",
            "namespace": "diptych-system",
            "labels": {"app.kubernetes.io/version": "0.1.0"},
        },
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": "diptych:0.1.0"}]}}},
        "status": {"availableReplicas": available},
    }


def lease(*, age: float = 1, holder: str = "diptych-1") -> Object:
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).isoformat().replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    return {"spec": spec}


@pytest.fixture
def cluster(programs: Any) -> Any:
    programs.answer("customresourcedefinitions", out=CRD)
    programs.answer("deployments.apps", out=items(deployment()))
    programs.answer("leases.coordination.k8s.io", "--namespace=diptych-system", out=lease())
    programs.answer("get agents.diptych.dev", out=items(agent("helper")))
    programs.answer("config", "view", out="")
    return programs


def test_status_of_what_is_well(typed: Type, cluster: Any) -> None:
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


def test_an_agent_that_no_operator_has_seen_is_not_ready(typed: Type, cluster: Any) -> None:
    new = {"metadata": {"name": "new", "namespace": "default"}, "spec": {}}
    cluster.answer("get agents.diptych.dev", out=items(new))
    outcome = typed("status")
    assert outcome.code == 1
    assert "✗   default/new  NotSeen: No operator has seen it yet" in outcome.out


@pytest.mark.parametrize(
    ("words", "what", "said"),
    [
        pytest.param(
            ["deployments.apps"],
            {"out": items()},
            "✗ operator  none is installed; `diptych install`",
            id="none",
        ),
        pytest.param(
            ["deployments.apps"],
            {"out": items(deployment(available=0))},
            "0 of 1 ready, diptych-1 leads; see `kubectl describe pods -n diptych-system`",
            id="an operator that is down",
        ),
        pytest.param(
            ["leases.coordination.k8s.io"], {"err": NOT_FOUND}, "nobody leads; see", id="no Lease"
        ),
        pytest.param(
            ["leases.coordination.k8s.io"],
            {"out": lease(holder="")},
            "nobody leads; see",
            id="a Lease that was released",
        ),
        pytest.param(
            ["leases.coordination.k8s.io"],
            {"out": lease(age=600)},
            "nobody leads: diptych-1 was last heard of 20",
            id="a leader that is gone",
        ),
        pytest.param(
            ["customresourcedefinitions"],
            {"err": NOT_FOUND},
            "✗ CRD  agents.diptych.dev is not installed; `diptych install` installs it",
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


def test_what_one_may_not_see_is_no_fault(typed: Type, cluster: Any) -> None:
    for words in ("deployments.apps", "customresourcedefinitions"):
        cluster.answer(words, err=FORBIDDEN)
    outcome = typed("status", "-n", "default")
    assert outcome.code == 0
    assert (
        "! operator  not to be seen: the cluster does not allow it: it is forbidden" in outcome.out
    )
    assert "! CRD  not to be seen" in outcome.out


@pytest.mark.parametrize(
    ("words", "end"),
    [
        pytest.param([], "it is forbidden; give the --namespace that you may see", id="of all"),
        pytest.param(["-n", "a"], "it is forbidden", id="of one namespace"),
    ],
)
def test_agents_one_may_not_see_are_no_success(
    typed: Type, cluster: Any, words: list[str], end: str
) -> None:
    cluster.answer("get agents.diptych.dev", err=FORBIDDEN)
    outcome = typed("status", *words)
    assert outcome.code == 1
    last = outcome.out.splitlines()[-1]
    assert last == f"✗ agents  not to be seen: the cluster does not allow it: {end}"


def test_a_leader_one_may_not_see_is_no_fault(typed: Type, cluster: Any) -> None:
    cluster.answer("leases.coordination.k8s.io", err=FORBIDDEN)
    outcome = typed("status")
    assert outcome.code == 0
    assert "its leader is not to be seen" in outcome.out


def test_a_cluster_without_agents_is_well(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", out=items())
    outcome = typed("status")
    assert (outcome.code, outcome.out.splitlines()[-1]) == (0, "✓ agents  there are none")


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


def test_get_tells_all_about_one(typed: Type, cluster: Any) -> None:
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
        "    ✓ Accepted     Accepted: The manifest can be served.",
        "    ✓ Ready        Ready: 1 of 1 pods can take work.",
        f"    ✗ Degraded     NotFound: {shortage}",
        "    ! Progressing  RollingOut: 1 of 2 pods run the newest revision.",
        "    ! Resting      NotAsked",
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
def test_an_agent_that_is_not_there(
    typed: Type, cluster: Any, name: str, there: list[Object], said: str
) -> None:
    cluster.answer("get agents.diptych.dev", "--all-namespaces", out=items(*there))
    cluster.answer("get agents.diptych.dev", name, err=NOT_FOUND)
    for command in ("get", "logs"):
        outcome = typed(command, name)
        expected = f"error: there is no Agent {name} in namespace default{said}\n"
        assert (outcome.code, outcome.out, outcome.err) == (1, "", expected)


def test_who_may_look_into_one_namespace_alone_is_told_its_names(typed: Type, cluster: Any) -> None:
    cluster.answer(
        "get agents.diptych.dev", "--namespace=team", out=items(agent("helper", namespace="team"))
    )
    cluster.answer("get agents.diptych.dev", "--all-namespaces", err=FORBIDDEN)
    cluster.answer("get agents.diptych.dev", "helpr", err=NOT_FOUND)
    outcome = typed("get", "team/helpr")
    assert outcome.err == "error: there is no Agent helpr in namespace team; did you mean helper?\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ["get", "No_Name"], "No_Name: must be an Agent's name, or namespace/name", id="a name"
        ),
        pytest.param(["logs", "a/b/c"], "a/b/c: must be an Agent's name", id="too many parts"),
        pytest.param(
            ["get", "legal/helper", "-n", "team"],
            "legal/helper is not in --namespace team",
            id="two namespaces",
        ),
        pytest.param(["get", "-A", "helper"], "goes without a name", id="all of one"),
        pytest.param(["status", "-A", "-n", "x"], "give either --namespace or", id="all of some"),
    ],
)
def test_misuse_is_said(typed: Type, cluster: Any, words: list[str], said: str) -> None:
    outcome = typed(*words)
    assert outcome.code == 2
    assert said in outcome.err


def test_without_kubectl_it_is_said_what_to_install(
    typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    for words in (["get"], ["status"], ["logs", "x"], ["events", "helper"]):
        outcome = typed(*words)
        assert outcome.code == 2
        assert outcome.err.startswith("error: kubectl is not on PATH, and this command works by it")
        assert "https://kubernetes.io/docs/tasks/tools/" in outcome.err
        assert len(outcome.err.splitlines()) == 1


def test_a_cluster_that_knows_no_agents_is_told_what_to_do(typed: Type, cluster: Any) -> None:
    cluster.answer(
        "get agents.diptych.dev", err='error: the server doesn\'t have a resource type "agents"'
    )
    for words in (["get"], ["get", "x"], ["logs", "x"], ["events", "x"]):
        outcome = typed(*words)
        assert outcome.code == 1
        assert "`diptych install` installs it" in outcome.err


def test_kubectl_that_does_not_speak_json_is_one_sentence(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out="<html>")
    outcome = typed("get", "helper")
    assert (outcome.code, outcome.err) == (
        1,
        "error: kubectl did not answer in JSON; is it very old?\n",
    )


def test_kubectl_that_cannot_be_run_is_one_sentence(typed: Type, cluster: Any) -> None:
    (cluster.folder / "kubectl").write_text("#!/nowhere/python\n")
    outcome = typed("get")
    assert outcome.code == 2
    assert "kubectl cannot be run: No such file or directory" in outcome.err


def test_logs_of_one_pod_are_passed_on_as_they_are(typed: Type, cluster: Any) -> None:
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


def test_logs_that_cannot_be_had_say_why(typed: Type, cluster: Any) -> None:
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
