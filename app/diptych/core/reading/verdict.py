"""The verdict on a reply: calls, a no-op, prose, or an invalid action."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.messages import Call

_LISTED = 1000  # characters of a list of names in an error
_SHOWN = 60  # characters of one name


def cut(text: str) -> str:
    """Shorten a text to 1,000 characters."""
    return text if len(text) <= _LISTED else f"{text[:_LISTED]} …"


def listed(names: Iterable[str]) -> str:
    """Join names with commas; `none` if there are none."""
    return cut(", ".join(names)) or "none"


def quoted(name: str) -> str:
    """Return a name as a JSON string, shortened to 60 characters."""
    return json.dumps(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…", ensure_ascii=False)


ActionErrorType = Literal[
    "json_syntax",
    "missing_field",
    "unknown_tool",
    "unknown_agent",
    "invalid_arguments",
    "ambiguous",
    "invalid_graph",
    "too_many_calls",
    "truncated",
]


@dataclass(frozen=True, slots=True)
class ActionError:
    """A reply that looks like an action but is unusable; `detail` is for the model."""

    type: ActionErrorType
    detail: str


@dataclass(frozen=True, slots=True)
class NoOp:
    """A reply that requests no action: `{}`, `{"tool": null}`, `[]` or `<>`."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A reply without an action. It is dropped; phase 2 asks for the answer."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a reply, at least one, in its order.

    Their ids "1", "2" … are unique in the reply, not in the run. Identical calls without labels are
    merged; `places` then maps each requested call to its index in `calls`, and is empty otherwise.
    (Native calls each need a result; in our own form, one result is enough.) `ignored` are keys of
    the reply that are not part of a call.
    """

    calls: tuple[Call, ...]
    places: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()


Verdict: TypeAlias = Calls | NoOp | Prose | ActionError
