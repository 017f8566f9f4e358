"""What a person types to say which agent is meant: a file, a URL, or an Agent of a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cluster_objects import agent

Type = Callable[..., Any]
HELPER = agent("helper", namespace="team")


@pytest.fixture
def cluster(programs: Any) -> Any:
    programs.answer("get agents.diptych.dev helper", out=HELPER)
    return programs


def test_a_file_of_that_name_wins(typed: Type, cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "helper").write_text(
        "apiVersion: diptych.dev/v1alpha1\nkind: Agent\nmetadata: {name: filed}\nspec: {container:"
        ' {env: [{name: DEBUG_MOCK_RESPONSES, value: \'["{}", "From the file."]\'}]}}\n'
    )
    outcome = typed("run", "helper", "Hi")
    assert (outcome.code, outcome.out) == (0, "From the file.\n")
    assert not cluster.calls()


def test_a_folder_of_that_name_does_not(typed: Type, cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "helper").mkdir()
    cluster.answer("port-forward", err="error: so it was asked")
    assert "so it was asked" in typed("run", "helper", "Hi").err


def test_what_is_neither_file_nor_agent_says_what_was_tried(typed: Type, cluster: Any) -> None:
    cluster.answer(
        "get agents.diptych.dev",
        out={"items": [HELPER]},
    )
    cluster.answer("get agents.diptych.dev helpr", err="Error from server (NotFound): no")
    cluster.answer("config view", out="team")
    for words in (["chat", "helpr"], ["run", "helpr", "Hi"]):
        outcome = typed(*words)
        assert outcome.code == 1
        assert outcome.err == (
            "error: there is no file helpr, and in the cluster: there is no Agent helpr in "
            "namespace team; did you mean helper?\n"
        )


def test_without_a_cluster_the_missing_file_is_reported(typed: Type, programs: Any) -> None:
    programs.answer(
        "get agents.diptych.dev", err="The connection to the server localhost:8080 was refused"
    )
    outcome = typed("chat", "helper")
    assert outcome.code == 2
    assert outcome.err.startswith(
        "error: there is no file helper, and in the cluster: no cluster is configured: "
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ["run", "helper", "Hi", "--agent", "x"],
            "go with a file, and there is none of this name",
            id="an option of files",
        ),
        pytest.param(
            ["run", "http://127.0.0.1:9", "Hi", "-n", "x"],
            "--namespace and --as-service-account go with an Agent of a cluster, not http://",
            id="an option of clusters, at a URL",
        ),
        pytest.param(
            ["chat", "file.yaml", "--context", "x"],
            "go with an Agent of a cluster, not file.yaml",
            id="an option of clusters, for a file",
        ),
        pytest.param(
            ["events", "127.0.0.1:9", "--kubeconfig", "x"],
            "go with an Agent of a cluster, not 127.0.0.1:9",
            id="an option of clusters, at a URL without a scheme",
        ),
        pytest.param(
            ["attach", "run-1", "--context", "x"],
            "go with an Agent of a cluster, not http://127.0.0.1:8000",
            id="an option of clusters, without --at",
        ),
    ],
)
def test_options_go_with_what_they_are_for(
    typed: Type, programs: Any, words: list[str], said: str
) -> None:
    outcome = typed(*words)
    assert outcome.code == 2
    assert said in outcome.err
    assert not programs.calls()


@pytest.mark.parametrize("place", ["localhost", "localhost:9", "127.0.0.1:9", "http://127.0.0.1:9"])
def test_what_looks_like_an_address_is_one(typed: Type, programs: Any, place: str) -> None:
    outcome = typed("events", place)
    assert outcome.code == 1
    assert not programs.calls()
