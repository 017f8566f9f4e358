"""What servers say of their models: the names, and how long a context each has.

Pure. The API has only `id`; the rest is what each server adds. Nothing here fails: a server that
says something else says nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

# The fields of a listed model, each with who writes it so. Training lengths are none of them.
_CONTEXT_FIELDS = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "context_length",  # OpenRouter, Together
    "context_window",  # Groq
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic, LiteLLM
)
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of a list: its name, its other names, its owner's, and its window in tokens."""

    name: str
    aliases: frozenset[str] = frozenset()
    owner: str = ""
    context: int | None = None


def read_models(body: bytes) -> tuple[ListedModel, ...] | None:
    """Read the answer of `GET /models`; None if it is no list of models."""
    found = _loaded(body)
    if isinstance(found, dict):
        found = found.get("data", found.get("models"))
    if not isinstance(found, list):  # Together gives the list alone
        return None
    entries = [entry for entry in found if isinstance(entry, dict)]
    models = [_listed(entry) for entry in entries]
    return tuple(model for model in models if model is not None) if entries or not found else None


def find_model(models: Sequence[ListedModel], name: str) -> ListedModel | None:
    """Give the model that an endpoint means by a name."""
    spellings = {name, f"models/{name}", f"{name}:latest"}  # Gemini's, Ollama's
    named = (model for model in models if model.name in spellings or name in model.aliases)
    return next(named, None)


def props_context(body: bytes) -> int | None:
    """Read llama.cpp's `/props`: the tokens of one slot, which is what a request may have."""
    settings = _mapping(_mapping(_loaded(body)).get("default_generation_settings"))
    return _count(settings.get("n_ctx"))


def loaded_context(body: bytes, name: str) -> int | None:
    """Read Ollama's `/api/ps`: with how many tokens it has loaded the model."""
    models = _mapping(_loaded(body)).get("models")
    for model in models if isinstance(models, list) else ():
        if _mapping(model).get("name") in {name, f"{name}:latest"}:
            return _count(model.get("context_length"))
    return None


def shown_context(body: bytes) -> int | None:
    """Read Ollama's `/api/show`: `num_ctx` of the model's file; its training length says less."""
    parameters = _mapping(_loaded(body)).get("parameters")
    found = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return int(found[1]) if found else None


def _listed(entry: Mapping[str, Any]) -> ListedModel | None:
    name = entry.get("id") or entry.get("name")
    if not isinstance(name, str):
        return None
    aliases = entry.get("aliases")
    counts = [_count(_mapping(entry.get("meta")).get("n_ctx"))]  # llama.cpp
    counts += [_count(entry.get(field)) for field in _CONTEXT_FIELDS]
    return ListedModel(
        name,
        frozenset(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list) else (
            frozenset()
        ),
        str(entry.get("owned_by") or ""),
        next((count for count in counts if count is not None), None),
    )  # fmt: skip


def _loaded(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
