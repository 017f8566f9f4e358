"""The contracts with everything outside: models, tools, other agents, traces, stores.

A port is used by one event loop, from many tasks at once. Cancelling a task that waits in a port
cancels the work behind it, at its server too where the protocol can.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from diptych.core.budget import UNLIMITED, Budget
from diptych.core.catalog import Peer, Tool, Unavailable
from diptych.core.codec import Record
from diptych.core.commands import AskModel
from diptych.core.events import Event
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
    "ChildDecision",
    "ChildEvent",
    "ChildRef",
    "Clock",
    "DelegationProgress",
    "DelegationRequest",
    "Delta",
    "Feed",
    "FeedItem",
    "Gap",
    "Item",
    "Model",
    "Notice",
    "Progress",
    "Reply",
    "RunTrace",
    "SessionLeases",
    "Tools",
    "Tracing",
    "ValueProvider",
]

T = TypeVar("T")

Progress = Callable[[str], None]
"""Called with a sentence on a tool's progress. Must not block."""

ValueProvider = Callable[[], str | None]
"""Reads a value at each use, for it may change (a key of a Secret); None while it is missing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `finish_reason` is the model's own word, `stop` if it has none."""

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    reasoning: str = ""
    calls: tuple[NativeCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a streamed reply; what arrived together is one piece.

    The last piece of a reply, and only it, has a `finish_reason`, all usage that is known, and
    all native calls of the reply.
    """

    text: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    finish_reason: str | None = None
    calls: tuple[NativeCall, ...] = ()


class Model(Protocol):
    """A language model.

    Both methods raise `ModelError`, after retries of their own where those cannot do harm, and
    only before the first `Delta`. A stream that ends without a `finish_reason` raises `model_cut`:
    a truncated reply never looks whole.
    """

    async def complete(self, request: ModelRequest) -> Reply: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]: ...

    @property
    def takes_tools(self) -> bool | None:
        """Whether its endpoint takes `request.tools`; None while that is not known.

        A refusal is the code `tools_refused`.
        """
        return None

    @property
    def refused_tool(self) -> str | None:
        """The tool for which it takes none: "" for an unnamed one, None if it refuses all."""
        return None

    @property
    def wants_reasoning(self) -> bool | None:
        """Whether its endpoint wants reasoning back beside native calls; None while unknown."""
        return False


class Tools(Protocol):
    """The tools of all servers of an agent."""

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Return what can be called now, in the manifest's order, without asking a server."""
        ...

    def retry_unavailable(self) -> None:
        """Try unavailable servers again, in the background."""
        ...

    async def call(self, tool: Tool, arguments: JSONObject, progress: Progress) -> CallOutput:
        """Call a tool once. Raises `ToolError`; never sends a call a second time by itself."""
        ...


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """An event in a task at another agent, or below it, as that agent sends it.

    Its fields are those of a record, shortened; `seq` is 0 for a notice. `path` holds the calls
    that lead from the task's run to that of the event.
    """

    type: str
    path: tuple[str, ...] = ()
    seq: int = 0
    timestamp: float = 0.0
    content: JSON = None
    metadata: JSONObject = field(default_factory=dict)


DelegationProgress = Callable[[str | ChildRun | ChildEvent], None]
"""Called with a sub-agent's text, its task when more of it is known, and its events. Must not
block."""


@dataclass(frozen=True, slots=True)
class DelegationRequest:
    """A delegation, ready to be sent (loop.md §5).

    `context_id` is new for every delegation. `path` holds the card URLs of the agents that the
    request has come through, the caller last. `subject` is the run's, "" if unknown. With
    `deadline_pauses`, `seconds_left` stands still while a call below waits for approval. `budget`
    holds for the task and its children.
    `is_taken_over`: the run's former owner sent it, so its task is looked up by its context.
    `leaves_task` is asked on cancellation: the task goes on, as another process takes it up.
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

    `depth` is the number of levels wanted below it.
    """

    task_id: str
    url: str
    context_id: str
    depth: int


@dataclass(frozen=True, slots=True)
class ChildDecision:
    """A decision on a call of a run below, for the agent that the delegation called.

    `call_id` is the call's id there, `subject` the decider, "" if unknown. The rest is as in
    `runs.approvals.DecisionRequest`.
    """

    agent: str
    url: str
    task_id: str
    call_id: str
    decision: str
    reason: str = ""
    arguments: JSONObject | None = None
    call: JSONObject | None = None
    subject: str = ""


class Agents(Protocol):
    """The other agents that an agent may delegate to."""

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        """The agents that can be asked now, in the manifest's order, without asking any."""
        ...

    async def delegate(
        self, request: DelegationRequest, progress: DelegationProgress
    ) -> CallOutput:
        """Send an agent a task and wait for its end.

        The output names the task as its `child`. Raises `DelegationError`, with the `child` if
        there was one.
        """
        ...

    async def decide(self, decision: ChildDecision) -> None:
        """Pass a decision on. Raises `DecisionRefused`."""
        ...

    async def run_tree(self, agent: str, child: ChildRef) -> JSON:
        """Return a delegated run and what is below it. Raises `DelegationError`."""
        ...


class RunTrace(Protocol):
    """The trace of one run, as long as this process executes it.

    It gets what no record has. Nothing here raises, or waits for anything but the given work.
    """

    def asking(
        self, command: AskModel, ask: Callable[[], Coroutine[Any, Any, Event]]
    ) -> Coroutine[Any, Any, Event]:
        """Ask the model as part of this run's trace."""
        ...

    def reply_began(self) -> None:
        """Note that a streamed reply has begun."""
        ...

    def reply_came(self, text: str, calls: Sequence[NativeCall], finish_reason: str) -> None:
        """Note the whole reply of the model."""
        ...

    def calling(
        self, call_id: str, make: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Make a call as part of this run's trace."""
        ...

    def traceparent(self, call_id: str) -> str | None:
        """Return the W3C trace context for the receiver of a call."""
        ...


class Tracing(Protocol):
    """The traces of an agent's runs."""

    def of_run(
        self, run_id: str, session_id: str, records: Callable[[], Sequence[Record]]
    ) -> AbstractContextManager[RunTrace]:
        """Trace a run while the block lasts; its span ends when the run's end is logged.

        `records` gives those on record. A run that goes on at another process is left to it.
        """
        ...
