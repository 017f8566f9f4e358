"""The contracts with everything outside: models, tools, other agents, traces, stores.

A port is used by many tasks of one event loop. Cancelling a task that waits in a port cancels the
work behind it, also at the server if the protocol supports that.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Peer, Tool, Unavailable
from diptych.core.codec import Record
from diptych.core.commands import AskModel, InputAnswer, Resumed
from diptych.core.events import Event, InputRequest, WaitKind
from diptych.core.messages import (
    JSON,
    CallOutput,
    ChildRun,
    JSONObject,
    Message,
    NativeCall,
    Usage,
)
from diptych.core.model_request import ModelRequest
from diptych.ports.stores import Clock, Feed, FeedItem, Gap, Item, Notice, SessionLeases

__all__ = [
    "Agents",
    "Ask",
    "CallContext",
    "ChildEvent",
    "ChildRef",
    "ChildReply",
    "Clock",
    "DelegationProgress",
    "DelegationRequest",
    "Delta",
    "Feed",
    "FeedItem",
    "Gap",
    "InputAnswer",
    "Item",
    "Model",
    "Notice",
    "Progress",
    "Reply",
    "Resumed",
    "RunTrace",
    "SessionLeases",
    "Tools",
    "Tracing",
    "ValueProvider",
]

T = TypeVar("T")

Progress = Callable[[str], None]
"""Called with a message about a tool's progress. Must not block."""


class Ask(Protocol):
    """Asks a question of a call and waits for the answer; the run does not wait for a slot.

    With a `state` the call can continue in another process (`CallContext.resumed`). A question
    without an answer is cancelled after 10 minutes. Raises `ToolError` if it is too large.
    """

    async def __call__(self, request: InputRequest, state: JSON = None) -> InputAnswer: ...


async def ask_nobody(request: InputRequest, state: JSON = None) -> InputAnswer:
    """Cancel the question: there is nobody to ask."""
    del request, state
    return InputAnswer("cancel")


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a tool may use during one call.

    `person` is the run's subject if this agent has verified it, "" otherwise. `resumed`: another
    process began the call, which waited for this answer; it has a `state`.
    """

    progress: Progress
    run_id: str = ""
    call_id: str = ""
    person: str = ""
    resumed: Resumed | None = None
    ask: Ask = ask_nobody


ValueProvider = Callable[[], str | None]
"""Returns the current value of a setting that may change, such as a Secret; None if missing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `finish_reason` is the model's own, or `stop` if it sends none."""

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    reasoning: str = ""
    calls: tuple[NativeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed reply; everything that arrives together is one piece.

    Only the last piece of a reply has a `finish_reason`, the usage (if known), and the native
    calls.
    """

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    calls: tuple[NativeCall, ...] = ()


class Model(Protocol):
    """A language model.

    Both methods raise `ModelError`. They retry by themselves where that is safe, and only before
    the first `Delta`. A stream that ends without a `finish_reason` raises `model_cut`: a truncated
    reply never looks complete.
    """

    async def complete(self, request: ModelRequest) -> Reply: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]: ...

    @property
    def takes_tools(self) -> bool | None:
        """Whether the endpoint supports `request.tools`; None while unknown.

        If it refuses them, the error code is `tools_refused`.
        """
        return None

    @property
    def refused_tool(self) -> str | None:
        """The tool that makes `takes_tools` False; "" if unnamed, None if all are refused."""
        return None

    @property
    def wants_reasoning(self) -> bool | None:
        """Whether native calls must be sent back with their reasoning; None while unknown."""
        return False


class Tools(Protocol):
    """The tools of all servers of an agent."""

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Return the callable tools, in the manifest's order, without contacting a server."""
        ...

    def retry_unavailable(self) -> None:
        """Reconnect to unavailable servers, in the background."""
        ...

    async def call(self, tool: Tool, arguments: JSONObject, context: CallContext) -> CallOutput:
        """Call a tool once. Raises `ToolError`; never repeats a call that may have been sent."""
        ...


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """An event of a task at another agent, or of a run below it, as sent by that agent.

    Its fields are those of a record, shortened; `seq` is 0 for a notice. `path` has the ids of the
    calls that lead from the task's run to the event's run.
    """

    type: str
    path: tuple[str, ...] = ()
    seq: int = 0
    timestamp: float = 0.0
    content: JSON = None
    metadata: JSONObject = field(default_factory=dict)


DelegationProgress = Callable[[str | ChildRun | ChildEvent], None]
"""Called with a sub-agent's text, its events, and its task whenever more is known about it. Must
not block."""


@dataclass(frozen=True, slots=True)
class DelegationRequest:
    """A delegation to send to another agent (loop.md §5).

    `context_id` is new for every delegation. `path` has the card URLs of the agents that the
    request came through, the caller's last. `subject` is the run's, "" if unknown. With
    `deadline_pauses`, `seconds_left` pauses while a call below waits for approval. `budget` limits
    the task and its children. `is_taken_over`: the run's former owner already sent it, so the task
    is looked up by its context. `leaves_task` returns True on cancellation if the task should
    continue, since another process takes over the run.
    """

    agent: str
    task: str
    context_id: str
    context: tuple[Message, ...] = ()
    path: tuple[str, ...] = ()
    seconds_left: float | None = None
    traceparent: str | None = None
    subject: str = ""
    run_id: str = ""
    call_id: str = ""
    deadline_pauses: bool = False
    is_taken_over: bool = False
    leaves_task: Callable[[], bool] = bool
    budget: Budget = UNLIMITED


@dataclass(frozen=True, slots=True)
class ChildRef:
    """A run at another agent: its id and that agent's URL, or the context of its delegation.

    `depth` is the number of levels to read below it.
    """

    task_id: str
    url: str
    context_id: str
    depth: int


@dataclass(frozen=True, slots=True)
class ChildReply:
    """A decision on a call in a delegated run, or an answer to its question.

    `call_id` is the call's id there. `body` has the fields of `DecisionRequest` or `InputReply`
    that are not empty, but for `caller`.
    """

    agent: str
    url: str
    task_id: str
    call_id: str
    kind: WaitKind
    body: JSONObject


class Agents(Protocol):
    """The other agents that an agent may delegate to."""

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        """Return the available agents, in the manifest's order, without contacting any."""
        ...

    async def delegate(
        self, request: DelegationRequest, progress: DelegationProgress
    ) -> CallOutput:
        """Send an agent a task and wait for its end.

        The output's `child` is the task. Raises `DelegationError`, with the `child` if there was
        one.
        """
        ...

    async def reply(self, reply: ChildReply) -> None:
        """Pass a decision or an answer on. Raises `DecisionRefused`."""
        ...

    async def run_tree(self, agent: str, child: ChildRef) -> JSON:
        """Return a delegated run and the runs below it. Raises `DelegationError`."""
        ...


class RunTrace(Protocol):
    """The trace of one run while this process executes it.

    It receives what the log lacks. Methods never raise, nor wait for anything but the given work.
    """

    def asking(
        self, command: AskModel, ask: Callable[[], Coroutine[Any, Any, Event]]
    ) -> Coroutine[Any, Any, Event]:
        """Call `ask` within a span for the model request."""
        ...

    def reply_began(self) -> None:
        """Record that a streamed reply has started."""
        ...

    def reply_came(self, text: str, calls: Sequence[NativeCall], finish_reason: str) -> None:
        """Record the model's whole reply."""
        ...

    def calling(
        self, call_id: str, make: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Call `make` below the span of the call."""
        ...

    def traceparent(self, call_id: str) -> str | None:
        """Return the W3C trace context for the receiver of a call."""
        ...


class Tracing(Protocol):
    """The traces of an agent's runs."""

    def of_run(
        self, run_id: str, session_id: str, records: Callable[[], Sequence[Record]]
    ) -> AbstractContextManager[RunTrace]:
        """Trace a run within the block; its span ends when the run's end is logged.

        `records` returns the log so far. If another process continues the run, it also continues
        the trace.
        """
        ...
