"""The parts of a conversation: messages, calls and results, as frozen values.

Not here: the run (`state`), what it may call (`catalog`), how any of this looks on the wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diptych.errors import CallErrorKind

JSON: TypeAlias = "Mapping[str, JSON] | list[JSON] | str | int | float | bool | None"
JSONObject: TypeAlias = Mapping[str, JSON]
Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as a model reads it."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of an MCP tool that a reply asked for.

    `id` is unique in the run. `label` is the `"id"` that the model gave it in its reply, if any;
    `after` holds the labels of the calls that must succeed first, named or implied by a reference.
    """

    id: str
    name: str
    arguments: JSONObject = field(default_factory=dict)
    label: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delegation:
    """One task for another agent; `id`, `label` and `after` as in `ToolCall`."""

    id: str
    agent: str
    task: str
    label: str | None = None
    after: tuple[str, ...] = ()


Call: TypeAlias = ToolCall | Delegation


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The output of a tool or agent: text for the model, and a value for `${id.path}`."""

    text: str
    value: JSON = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one call; `error` is None when it succeeded."""

    call_id: str
    text: str
    value: JSON = None
    error: CallErrorKind | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, or of several added up."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )
