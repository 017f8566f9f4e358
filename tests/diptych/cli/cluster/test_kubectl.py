"""What kubectl says when it fails, and the sentence made of it; and tokens by kubectl."""

from collections.abc import Callable
from typing import Any

import pytest

from diptych.cli.cluster.kubectl import (
    ClusterError,
    Forbidden,
    NotFound,
    kubectl_error,
)
from diptych.core.errors import ConfigError, DiptychError

Type = Callable[..., Any]
NO_CRD = (
    "this cluster has no Agent CRD; install it and the operator with helm: "
    "charts/diptych/README.md says how"
)

LOGGED = (
    'E1121 15:04:50.919025   15801 memcache.go:265] "Unhandled Error" err="couldn\'t get current '
    'server API group list: Get \\"http://localhost:8080/api?timeout=32s\\": dial tcp: refused"\n'
)
PLUGIN = """E1121 15:04:51.198965   15835 memcache.go:265] "Unhandled Error" err=<
	couldn't get current server API group list: getting credentials: exec: executable x not found

	It looks like you are trying to use a client-go credential plugin that is not installed.
 >
Unable to connect to the server: getting credentials: exec: executable x not found

It looks like you are trying to use a client-go credential plugin that is not installed.
"""


@pytest.mark.parametrize(
    ("stderr", "kind", "said"),
    [
        (
            LOGGED * 3 + "The connection to the server localhost:8080 was refused - did you specify"
            " the right host or port?\n",
            ConfigError,
            "no cluster is configured: set KUBECONFIG, or give --kubeconfig and --context",
        ),
        (
            "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout",
            ClusterError,
            "kubectl: Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout",
        ),
        (
            PLUGIN,
            ClusterError,
            f"kubectl: {PLUGIN.splitlines()[5]}",
        ),
        (
            "Error in configuration: context was not found for specified context: nope\n",
            ConfigError,
            "kubectl: context was not found for specified context: nope",
        ),
        (
            "error: cannot locate context nope\n",
            ConfigError,
            "kubectl: cannot locate context nope",
        ),
        (
            "error: stat /nope: no such file or directory\n",
            ConfigError,
            "kubectl: stat /nope: no such file or directory",
        ),
        (
            'Error from server (Forbidden): agents.diptych.dev is forbidden: User "x" cannot\n',
            Forbidden,
            'the cluster does not allow it: agents.diptych.dev is forbidden: User "x" cannot',
        ),
        (
            'Error from server (NotFound): agents.diptych.dev "helper" not found\n',
            NotFound,
            'the cluster says: agents.diptych.dev "helper" not found',
        ),
        (
            'error: the server doesn\'t have a resource type "agents"\n',
            ClusterError,
            NO_CRD,
        ),
        (
            "Error from server (NotFound): the server could not find the requested resource\n",
            ClusterError,
            NO_CRD,
        ),
        ("Warning: old\n" + LOGGED, ClusterError, "kubectl: it failed, and did not say why"),
    ],
)
def test_an_error_is_one_sentence(stderr: str, kind: type[DiptychError], said: str) -> None:
    error = kubectl_error(stderr)
    assert type(error) is kind
    assert str(error) == said


@pytest.fixture
def cluster(programs: Any) -> Any:
    helper = {"metadata": {"name": "helper", "namespace": "team"}, "spec": {}}
    programs.answer("get agents.diptych.dev helper", out=helper)
    programs.answer("create token", out="the-token\n")
    return programs


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["token", "No_Name"], 2, "No_Name: must be an Agent's name, or namespace/name"),
        (["token", "legal/helper", "-n", "team"], 2, "legal/helper is not in --namespace team"),
        (["attach", "run-1", "--at", "a/b", "-n", "c"], 2, "a/b is not in --namespace c"),
        (["status", "-A", "-n", "x"], 2, "give either --namespace or --all-namespaces"),
    ],
)
def test_misuse_is_reported(
    typed: Type, cluster: Any, words: list[str], code: int, said: str
) -> None:
    outcome = typed(*words)
    assert (outcome.code, outcome.err) == (code, f"error: {said}\n")


def test_kubectl_that_is_missing_or_broken_is_one_sentence(
    typed: Type, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out="<html>")
    assert typed("token", "helper").err == (
        "error: kubectl did not answer in JSON; is it very old?\n"
    )
    (cluster.folder / "kubectl").write_text("#!/nowhere/python\n")
    outcome = typed("status")
    assert outcome.code == 2
    assert "kubectl cannot be run: No such file or directory" in outcome.err
    monkeypatch.setattr("shutil.which", lambda _name: None)
    for words in (["status"], ["token", "x"], ["events", "helper"]):
        outcome = typed(*words)
        assert outcome.code == 2
        assert outcome.err.startswith("error: kubectl is not on PATH, and this command works by it")
        assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "account", "duration"),
    [
        (["--context=c"], ("team", "helper"), "1h"),
        (["--as-service-account", "web", "--duration", "10m"], ("team", "web"), "10m"),
        (["--as-service-account", "shop/web"], ("shop", "web"), "1h"),
    ],
)
def test_a_token_is_of_the_account_that_is_meant_and_for_this_agent_alone(
    typed: Type, cluster: Any, options: list[str], account: tuple[str, str], duration: str
) -> None:
    outcome = typed("token", "helper", *options)
    assert (outcome.code, outcome.out) == (0, "the-token\n")
    [words] = cluster.calls("create token")
    assert [w for w in words[1:] if not w.startswith(("--request-timeout", "--context"))] == [
        f"--namespace={account[0]}",
        *("create", "token", account[1]),
        "--audience=diptych.dev/team/helper",
        f"--duration={duration}",
    ]
    assert ("--context=c" in words) is ("--context=c" in options)


def test_a_person_who_may_have_no_token_is_told_what_would_help(typed: Type, cluster: Any) -> None:
    why = 'serviceaccounts "helper" is forbidden: User "eve" cannot create it'
    cluster.answer("create token", err=f"error: failed to create token: {why}\n")
    outcome = typed("token", "helper")
    assert outcome.code == 1
    for part in (why, "`edit` in namespace team", "--as-service-account", "DIPTYCH_TOKEN"):
        assert part in outcome.err
