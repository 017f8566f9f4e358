"""Reads model parameters of a request: sampling, lengths, effort.

Parameters that the manifest allows (`chat.allowParameters`) reach the model. Others, and unknown
fields, have no effect and are named in a header.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from diptych.core.errors import InvalidRequest
from diptych.core.messages import JSONObject
from diptych.http.bodies import Body
from diptych.http.errors import first_problem

WARNING_HEADER = "X-Diptych-Warning"
_MAX_NAMED = 20  # fields in a warning
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
CHAT_ALIASES: Mapping[str, str] = {"max_completion_tokens": "max_tokens"}
_NEUTRAL = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that change nothing about an answer: they are for accounts, caches and statistics."""

_UNSUPPORTED = {
    "budget": "only runs started by POST /v1/runs have a budget of their own; remove it",
    "audio": "this agent answers in text; remove it",
}

_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Word = Annotated[str, Field(min_length=1, max_length=64)]


class ModelParameters(Body):
    """The parameters that can reach the model, with OpenAI's names and ranges."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[str, float] | None = None
    reasoning_effort: _Word | None = None
    verbosity: _Word | None = None


class ReadParameters(NamedTuple):
    """The parameters for the model, and the names of the fields that have no effect."""

    allowed: JSONObject
    ignored: tuple[str, ...] = ()


def check_supported(fields: Mapping[str, Any]) -> None:
    """Refuse fields that would change the reply's meaning. Raises `InvalidRequest`."""
    for name, advice in _UNSUPPORTED.items():
        if fields.get(name) is not None:
            raise InvalidRequest(f"{name}: {advice}", param=name, code="unsupported_parameter")


def read_parameters(
    fields: Mapping[str, Any],
    allowed: Collection[str],
    aliases: Mapping[str, str] = CHAT_ALIASES,
) -> ReadParameters:
    """Read a request's extra fields as model parameters.

    `aliases` maps the protocol's names to OpenAI's. Raises `InvalidRequest` for an allowed
    parameter with an invalid value.
    """
    given: dict[str, Any] = {}
    ignored: list[str] = []
    for field, value in fields.items():
        name = aliases.get(field, field)
        if value is None or field in _NEUTRAL:
            continue
        if name in allowed:
            if name not in given or field in aliases:  # the newer name of two counts
                given[name] = value
        elif not _says_nothing(value):
            ignored.append(field)
    return ReadParameters(_checked(given), tuple(ignored))


def warning(ignored: Iterable[str]) -> Mapping[str, str]:
    """Return the warning header for fields without effect; empty without any."""
    names = [name for name in ignored if _NAME.fullmatch(name)][:_MAX_NAMED]
    return {WARNING_HEADER: f"ignored: {', '.join(names)}"} if names else {}


def _checked(given: Mapping[str, Any]) -> JSONObject:
    if not given:
        return {}
    try:
        read = ModelParameters.model_validate(given)
    except ValidationError as error:
        raise first_problem(error.errors()) from error
    checked: JSONObject = read.model_dump(include=set(given))
    return checked


def _says_nothing(value: object) -> bool:
    """Whether a value is empty or switches a feature off, like `logprobs: false`."""
    return value is False or value in ("", [], {})
