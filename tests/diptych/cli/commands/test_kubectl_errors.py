"""What commands say when kubectl is missing, fails, or is used wrongly."""

from collections.abc import Callable
from typing import Any

import pytest

Type = Callable[..., Any]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ["token", "No_Name"], "No_Name: must be an Agent's name, or namespace/name", id="a name"
        ),
        pytest.param(["token", "a/b/c"], "a/b/c: must be an Agent's name", id="too many parts"),
        pytest.param(
            ["token", "legal/helper", "-n", "team"],
            "legal/helper is not in --namespace team",
            id="two namespaces",
        ),
        pytest.param(["status", "-A", "-n", "x"], "give either --namespace or", id="all of some"),
    ],
)
def test_misuse_is_reported(typed: Type, cluster: Any, words: list[str], said: str) -> None:
    outcome = typed(*words)
    assert outcome.code == 2
    assert said in outcome.err


def test_without_kubectl_the_error_says_what_to_install(
    typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    for words in (["status"], ["token", "x"], ["events", "helper"]):
        outcome = typed(*words)
        assert outcome.code == 2
        assert outcome.err.startswith("error: kubectl is not on PATH, and this command works by it")
        assert "https://kubernetes.io/docs/tasks/tools/" in outcome.err
        assert len(outcome.err.splitlines()) == 1


def test_a_cluster_that_knows_no_agents_is_told_what_to_do(typed: Type, cluster: Any) -> None:
    cluster.answer(
        "get agents.diptych.dev", err='error: the server doesn\'t have a resource type "agents"'
    )
    for words in (["token", "x"], ["events", "x"]):
        outcome = typed(*words)
        assert outcome.code == 1
        assert "install it and the operator with helm" in outcome.err


def test_kubectl_that_does_not_speak_json_is_one_sentence(typed: Type, cluster: Any) -> None:
    cluster.answer("get agents.diptych.dev", "helper", out="<html>")
    outcome = typed("token", "helper")
    assert (outcome.code, outcome.err) == (
        1,
        "error: kubectl did not answer in JSON; is it very old?\n",
    )


def test_kubectl_that_cannot_be_run_is_one_sentence(typed: Type, cluster: Any) -> None:
    (cluster.folder / "kubectl").write_text("#!/nowhere/python\n")
    outcome = typed("status")
    assert outcome.code == 2
    assert "kubectl cannot be run: No such file or directory" in outcome.err
