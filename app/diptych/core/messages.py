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
"""How an answer ended: whole, cut off by the model's length limit, or by a filter."""
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A call in the chat completions API's own `tool_calls`, before it is checked.

    `arguments` is the JSON text that the model wrote. `id` is unique in its reply. `extra` is what
    the endpoint wants back beside the call, as it came (Gemini's thought signature).
    """

    id: str
    name: str
    arguments: str
    extra: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as a model reads it.

    `calls` are the native calls of an assistant's message; a `tool` message is the result of the
    one with its `call_id`. `parts` are content parts that are not text (images, files), in the
    form of the chat completions API; they follow the text. `results` says where in the content of
    a user's message the results of calls stand: first and one past the last character of each.
    `sources` says in words what each of them is the result of.
    A message with `keeps` is a summary: it stands for all messages before it but the last so many.
    `reasoning` is what led to `calls`, where the endpoint may want it back beside them.
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
class ParentCall:
    """The delegation that a run comes from, as its caller names it.

    `agent` is the caller's name, `run_id` its run, `call_id` the call of that run.
    """

    agent: str
    run_id: str
    call_id: str


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The output of a tool or agent: text for the model, and a value for `${id.path}`.

    `finish_reason` is that of an agent's answer, as far as it says so; `child` is its task.
    """

    text: str
    value: JSON = None
    finish_reason: FinishReason = "stop"
    child: "ChildRun | None" = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one call; `error` is None when it succeeded.

    The text of an agent's answer that was cut off or filtered says so, and `finish_reason` too.
    `child` is the task of a delegation that was sent.
    """

    call_id: str
    text: str
    value: JSON = None
    error: CallErrorKind | None = None
    finish_reason: FinishReason = "stop"
    child: "ChildRun | None" = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, or of several added up."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def is_known(self) -> bool:
        """Whether an endpoint has said something; none takes no tokens."""
        return bool(self.prompt_tokens or self.completion_tokens)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


class Used(NamedTuple):
    """What was used, in the limits of a budget (`budget`).

    `tokens` are those of prompts and replies, `cost` is money, `wall_clock` in ms. It is a tuple,
    as each call adds some up: a frozen dataclass takes four times as long to make.
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
"""Nothing was used."""


@dataclass(frozen=True, slots=True)
class ChildRun:
    """The task that a delegation became at another agent, as far as that agent has said.

    `url` is the agent's base URL, `task_id` the task there, which is its run. `state` is the last
    that the task had, in A2A's words ("completed", "failed", "working" …), "" if it never named
    one; `code` is why a run of ours failed. `usage` is the sum over the task and its own children,
    None if the agent does not say; so is `used`, of all that budgets limit. `text` is what a task
    that did not complete had said.
    """

    url: str
    task_id: str = ""
    state: str = ""
    code: str = ""
    usage: Usage | None = None
    text: str = ""
    used: Used | None = None
