"""What a reply is found to be: calls, a no-op, prose, or something that looks like an action."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from diptych.core.messages import Call

_LISTED = 1000  # characters of the names that an error lists
_SHOWN = 60  # characters of one name


def cut(text: str) -> str:
    """Return the text, shortened to 1,000 characters."""
    return text if len(text) <= _LISTED else f"{text[:_LISTED]} …"


def listed(names: Iterable[str]) -> str:
    """Return names as a list in words, `none` for none."""
    return cut(", ".join(names)) or "none"


def quoted(name: str) -> str:
    """Return a name in quotation marks, shortened to 60 characters."""
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
    """Why a reply that looks like an action cannot be used; `detail` is for the model."""

    type: ActionErrorType
    detail: str


@dataclass(frozen=True, slots=True)
class NoOp:
    """A reply that says that no action is needed: `{}`, `{"tool": null}`, `[]` or `<>`."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A reply that holds nothing like an action. It is not kept; phase 2 asks for the answer."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that a reply asks for, in its order; at least one.

    Their ids are "1", "2" … by place: unique in the reply, not in the run. The same call asked for
    several times, without labels, is here once; `places` then holds, for each call that was asked
    for, the place in `calls` of the one whose result it gets. Otherwise it is empty. In our JSON
    form results are told per call, so one is enough there; an API's own calls each want a result.
    `ignored` are the keys of the reply that say something and are no part of a call.
    """

    calls: tuple[Call, ...]
    places: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()


Verdict: TypeAlias = Calls | NoOp | Prose | ActionError
