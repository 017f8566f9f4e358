"""The contracts with everything outside. Adapters fulfil them, and so do test doubles.

A port is used by one event loop, from many tasks at once. Cancelling a task that waits in a port
cancels the work behind it, at its server too where the protocol can.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from diptych.core.catalog import Tool, Unavailable
from diptych.core.codec import Record
from diptych.core.events import Signal
from diptych.core.messages import (
    CallOutput,
    JSONObject,
    Message,
    NativeCall,
    Usage,
)
from diptych.core.model_request import ModelRequest
from diptych.ports.delegations import (
    Agents,
    ChildDecision,
    ChildEvent,
    ChildRef,
    DelegationProgress,
    DelegationRequest,
)
from diptych.ports.entries import Lease, QueueHead

Progress = Callable[[str], None]
"""Called with a sentence on a tool's progress. Must not block."""


ValueProvider = Callable[[], str | None]
"""Reads a value at each use, for it may change (a key of a Secret); None while it is missing."""


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
    "SessionLeases",
    "Tools",
    "ValueProvider",
    "may_want_reasoning",
    "refused_tools",
    "refuses_tools",
]


@dataclass(frozen=True, slots=True)
class Notice:
    """What subscribers are told live and nobody records (loop.md §1)."""

    type: str
    fields: JSONObject = field(default_factory=dict)


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
    """A language model: `adapters.openai_chat.chat_model.ChatModel`, or `adapters.scripted`.

    `runtime.model_caller` asks it.

    Both methods raise `ModelError`, after retries of their own where those cannot do harm, and
    only before the first `Delta`. A stream that ends without a `finish_reason` raises `model_cut`:
    a truncated reply never looks whole.

    It may have an attribute `takes_tools`: False once its endpoint has refused `request.tools`,
    which is the code `tools_refused`; and `refused_tool`, the one of them that it refused, or ""
    for what it did not name. And one `wants_reasoning`: whether its endpoint wants the reasoning of
    a reply back beside its native calls, None while that is not known.
    """

    async def complete(self, request: ModelRequest) -> Reply: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]: ...


def refuses_tools(model: Model) -> bool:
    """Say whether a model is known to take no native calls."""
    return getattr(model, "takes_tools", None) is False


def refused_tools(model: Model) -> str:
    """Say in words what a model that takes no native calls has refused."""
    name: str | None = getattr(model, "refused_tool", None)
    if name is None:
        return "tools"
    return f"the tool {name!r}" if name else "these tools"


def may_want_reasoning(model: Model) -> bool:
    """Say whether a model's endpoint wants the reasoning beside native calls back, or may."""
    return getattr(model, "wants_reasoning", False) is not False


class Tools(Protocol):
    """The tools of all servers of an agent."""

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Say what can be called now, without asking any server: in the manifest's order."""
        ...

    def retry_unavailable(self) -> None:
        """Try the servers that are unavailable again now, in the background; a run wants them."""
        ...

    async def call(self, tool: Tool, arguments: JSONObject, progress: Progress) -> CallOutput:
        """Call a tool once. Raises `ToolError`; never sends a call a second time by itself."""
        ...


class SessionLeases(Protocol):
    """Ownership of sessions: one owner each, and the queue of its runs in order of arrival.

    A session with unfinished runs has a queue of them; the holder of its lease executes them one
    by one.
    """

    @property
    def lease_seconds(self) -> float | None:
        """How long a lease holds without renewal; None if it ends with the process."""
        ...

    async def claim(self, session_id: str, token: str) -> Lease | None:
        """Own a session that has unfinished runs and no owner; None if it cannot be had."""
        ...

    async def queue_head(self, session_id: str) -> QueueHead | None:
        """Say what is known of the run whose turn it is, whoever owns the session."""
        ...

    async def next_run(self, lease: Lease) -> str | None:
        """Give the run whose turn it is. None if none is left: then the lease is released.

        Raises `LeaseLost`.
        """
        ...

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        """Remove an ended run from the queue, and add what it said to the conversation.

        In the same step gives what `next_run` would. Does nothing for a run that is not in the
        queue. Waits for a store that is away. Raises `LeaseLost`, and `LogTruncated` if the store
        has lost the run's end.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Renew leases; gives those that are lost."""
        ...

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        """Give up a session whose runs have not ended, so that another process can claim it.

        With `hand_over` the other processes are told at once.
        """
        ...

    async def unowned_sessions(self) -> Sequence[str]:
        """Some sessions that have unfinished runs and no owner."""
        ...

    async def overdue_runs(self) -> Sequence[str]:
        """Runs that wait for their turn beyond their deadline: nobody has ended them yet.

        Each is given again some seconds later, until it has ended.
        """
        ...

    async def send_signal(self, run_id: str, signal: Signal) -> None:
        """Send a signal to a run's owner, or to the next one if there is none now.

        Does nothing for a run that has ended. Raises `TooManyMessages`.
        """
        ...

    def drop_signal(self, run_id: str, signal: Signal) -> None:
        """Forget a signal that is on the run's record. It may fail, and nobody waits for it."""
        ...

    async def may_be_truncated(self, run_id: str) -> bool:
        """Whether the store may have lost the newest records of a run: it was down meanwhile."""
        ...

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        """The signals that were sent to a run, in order of arrival, for a new owner."""
        ...


Item: TypeAlias = Record | Notice


@dataclass(frozen=True, slots=True)
class Gap:
    """Stands in a feed where items may have been missed: read the log again."""


FeedItem: TypeAlias = Item | Gap


class Feed(Protocol):
    """Live updates of runs between processes; some may be lost, for the log is the truth.

    It is `adapters.redis.feed`, which `runtime.subscription` subscribes to; one process with a
    store in memory has nobody to tell.

    Records are published by `EventLog.append`, in the same step; notices by `publish_notice`.
    """

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        """Tell a notice to subscribers at other processes. Never waits; may lose it."""
        ...

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        """Call `put`, of a subscriber's buffer, with every update of a run from now on.

        Gives what ends the subscription.
        """
        ...

    def on_signal(self, callback: Callable[[str, str, Signal], None]) -> None:
        """Call back with session, run and signal whenever a run is sent a signal."""
        ...

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        """Call back with the session whenever another process hands one over. May be lost."""
        ...


class Clock(Protocol):
    """Wall-clock time and random ids."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def token(self) -> str:
        """A new random token: 128 bits, lower-case hex."""
        ...
