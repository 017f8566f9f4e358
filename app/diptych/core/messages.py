"""The parts of a conversation: messages, calls and results, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from operator import add, sub
from typing import Literal, NamedTuple, TypeAlias

from diptych.core.errors import CallErrorKind

JSON: TypeAlias = "Mapping[str, JSON] | list[JSON] | str | int | float | bool | None"
JSONObject: TypeAlias = Mapping[str, JSON]
FinishReason = Literal["stop", "length", "content_filter"]
"""How an answer ended: complete, or cut off by the model's length limit or a content filter."""
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A native call (`tool_calls` of the chat completions API), not yet checked.

    `arguments` is the JSON text that the model wrote. `id` is unique in its reply. `extra` must be
    sent back with the call (Gemini's thought signature).
    """

    id: str
    name: str
    arguments: str
    extra: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as the model reads it.

    `calls` are the native calls of an assistant message; a `tool` message is the result of the call
    `call_id`. `parts` are content parts other than text (images, files) in the form of the chat
    completions API; they follow the text. `results` are the (start, end) offsets of call results in
    a user message's content, and `sources` describe each of them in words. A message with `keeps`
    is a summary of all messages before it but the last `keeps`. `reasoning` led to `calls`, and is
    kept if the endpoint may want it back.
    """

    role: Role
    content: str
    calls: tuple[NativeCall, ...] = ()
    call_id: str | None = None
    parts: tuple[JSONObject, ...] = ()
    results: tuple[tuple[int, int], ...] = ()
    keeps: int | None = None
    reasoning: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of an MCP tool.

    `id` is unique in the run. `label` is the `"id"` that the model gave it, if any; `after` holds
    the labels of calls that must succeed first, whether named or implied by a reference.
    """

    id: str
    name: str
    arguments: JSONObject = field(default_factory=dict)
    label: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delegation:
    """A task for another agent; `id`, `label` and `after` as in `ToolCall`."""

    id: str
    agent: str
    task: str
    label: str | None = None
    after: tuple[str, ...] = ()


Call: TypeAlias = ToolCall | Delegation


@dataclass(frozen=True, slots=True)
class ParentCall:
    """The delegation that created a run, as its caller names it.

    `call_id` is a call of the run `run_id` at the agent named `agent`.
    """

    agent: str
    run_id: str
    call_id: str


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The output of a tool or agent: text for the model, and a value for `${id.path}`.

    `finish_reason` is that of an agent's answer, if it says; `child` is its task.
    """

    text: str
    value: JSON = None
    finish_reason: FinishReason = "stop"
    child: "ChildRun | None" = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one call; `error` is None on success.

    If an agent's answer was cut off or filtered, both `text` and `finish_reason` say so. `child` is
    the task of a delegation that was sent.
    """

    call_id: str
    text: str
    value: JSON = None
    error: CallErrorKind | None = None
    finish_reason: FinishReason = "stop"
    child: "ChildRun | None" = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the endpoint reported usage; no real call uses zero tokens."""
        return bool(self.prompt_tokens or self.completion_tokens)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


class Used(NamedTuple):
    """Usage in each dimension of a budget.

    `tokens` counts prompts and replies, `cost` is money, `wall_clock` is in ms. A NamedTuple, as
    every call adds some up: a frozen dataclass takes four times as long to make.
    """

    tokens: int = 0
    cost: Decimal = Decimal(0)
    model_calls: int = 0
    tool_calls: int = 0
    steps: int = 0
    wall_clock: int = 0

    def __add__(self, other: "Used") -> "Used":  # type: ignore[override]
        return tuple.__new__(Used, map(add, self, other))

    def __sub__(self, other: "Used") -> "Used":
        return tuple.__new__(Used, map(sub, self, other))


NO_USE = Used()
"""Zero usage."""


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A delegation's task at another agent, as far as that agent has reported.

    `url` is the agent's base URL, `task_id` its task, which is its run. `state` is the task's last
    A2A state ("completed", "failed", "working" …), "" if unknown; `code` is the failure code of one
    of our runs. `usage` and `used` include the task's own children, None if not reported. `text` is
    the partial output of a task that did not complete.
    """

    url: str
    task_id: str = ""
    state: str = ""
    code: str = ""
    usage: Usage | None = None
    text: str = ""
    used: Used | None = None
