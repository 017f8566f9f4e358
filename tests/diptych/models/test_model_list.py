"""What servers say of their models, in the forms in which they were seen to say it."""

from typing import Any

import orjson
import pytest

from diptych.models.probe import (
    find_model,
    loaded_context,
    read_models,
)


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        pytest.param({"max_model_len": 32768}, 32768, id="vLLM"),
        pytest.param({"meta": {"n_ctx": 4096, "n_ctx_train": 8192}}, 4096, id="llama.cpp"),
        pytest.param({"meta": {"n_ctx_train": 8192}}, None, id="llama.cpp, before it said n_ctx"),
        pytest.param({"max_context_length": 9, "loaded_context_length": 5}, 5, id="LM Studio"),
        pytest.param({"context_length": None, "max_model_len": "x"}, None, id="no numbers"),
    ],
)
def test_the_context_of_a_listed_model(entry: dict[str, Any], context: int | None) -> None:
    models = read_models(orjson.dumps({"object": "list", "data": [{"id": "m", **entry}]}))
    assert models is not None
    assert [model.context for model in models] == [context]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        pytest.param(b'{"data": [{"id": "a"}, {"id": "b"}]}', ["a", "b"], id="OpenAI"),
        pytest.param(b'[{"id": "a"}]', ["a"], id="Together: the list alone"),
        pytest.param(b'{"models": [{"name": "a"}]}', ["a"], id="a list of another name"),
        pytest.param(b'{"data": [{"id": 7}, "x", {"id": "a"}]}', ["a"], id="some that are none"),
        pytest.param(b'{"data": "x"}', None, id="no list"),
        pytest.param(b"<html>", None, id="a page"),
    ],
)
def test_the_names_of_a_list(body: bytes, names: list[str] | None) -> None:
    models = read_models(body)
    assert (None if models is None else [model.name for model in models]) == names


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"id": "m"}, "m"),
        ({"id": "models/gemini-x"}, "gemini-x"),
        ({"id": "llama3:latest"}, "llama3"),
        ({"id": "file.gguf", "aliases": ["m"]}, "m"),
    ],
)
def test_a_model_is_found_by_each_of_its_names(entry: dict[str, Any], name: str) -> None:
    models = read_models(orjson.dumps({"data": [{"id": "other"}, entry]}))
    assert models is not None
    found = find_model(models, name)
    assert found is not None
    assert found.name == entry["id"]
    assert find_model(models, name + "x") is None


def test_ollama_says_how_long_a_context_it_has_loaded() -> None:
    running = b'{"models": [{"name": "x"}, {"name": "m:latest", "context_length": 8192}]}'
    assert loaded_context(running, "m") == 8192
    for body in (running, b"", b"[]", b"{}", b'{"models": 1}'):
        assert loaded_context(body, "y") is None
