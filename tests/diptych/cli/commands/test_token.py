"""`diptych token`, and whose token the other commands get: doubles of kubectl make them."""

from collections.abc import Callable
from typing import Any

import pytest

Type = Callable[..., Any]
FORBIDDEN = (
    'error: failed to create token: serviceaccounts "helper" is forbidden: User "eve" cannot '
    'create resource "serviceaccounts/token" in API group "" in the namespace "team"\n'
)


@pytest.fixture
def cluster(programs: Any) -> Any:
    helper = {"metadata": {"name": "helper", "namespace": "team"}, "spec": {}}
    programs.answer("get agents.diptych.dev helper", out=helper)
    programs.answer("create token", out="the-token\n")
    return programs


def asked(cluster: Any) -> list[str]:
    """Give the words of the only request for a token, after the program's name."""
    (words,) = cluster.calls("create token")
    return [word for word in words[1:] if not word.startswith("--request-timeout")]


def test_a_token_is_of_the_agents_own_account_and_for_this_agent_alone(
    typed: Type, cluster: Any
) -> None:
    outcome = typed("token", "helper", "--context=c")
    assert (outcome.code, outcome.out) == (0, "the-token\n")
    assert asked(cluster) == [
        "--context=c",
        "--namespace=team",
        *("create", "token", "helper"),
        "--audience=diptych.dev/team/helper",
        "--duration=1h",
    ]


@pytest.mark.parametrize(
    ("account", "namespace", "name"),
    [("web", "team", "web"), ("shop/web", "shop", "web")],
)
def test_another_account_may_be_named(
    typed: Type, cluster: Any, account: str, namespace: str, name: str
) -> None:
    typed("token", "helper", "--as-service-account", account, "--duration", "10m")
    words = asked(cluster)
    assert words[0] == f"--namespace={namespace}"
    assert words[1:4] == ["create", "token", name]
    assert words[4:] == ["--audience=diptych.dev/team/helper", "--duration=10m"]


def test_who_may_have_no_token_is_told_what_would_help(typed: Type, cluster: Any) -> None:
    cluster.answer("create token", err=FORBIDDEN)
    outcome = typed("token", "helper")
    assert outcome.code == 1
    assert 'User "eve" cannot create resource "serviceaccounts/token"' in outcome.err
    for remedy in ("`edit` in namespace team", "--as-service-account", "DIPTYCH_TOKEN"):
        assert remedy in outcome.err


def test_an_account_that_is_not_there_is_named(typed: Type, cluster: Any) -> None:
    why = 'failed to create token: serviceaccounts "web" not found'
    cluster.answer("create token", err=f"error: {why}\n")
    outcome = typed("token", "helper", "--as-service-account=web")
    assert outcome.code == 1
    assert 'serviceaccounts "web" not found' in outcome.err
