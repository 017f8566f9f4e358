"""What became of an MCP request on its way over HTTP.

The SDK reports every HTTP failure as a JSON-RPC error and forgets the status; whether a call may be
sent again depends on both. So `transport` records here what happened, and `connection` reads it.

A `RequestOutcome` travels in a `ContextVar`, because nothing else reaches the transport: the SDK
builds its HTTP requests itself, so a caller can attach no extension to them, but it sends each one
in a copy of its caller's context (`mcp.shared._context_streams`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self

from diptych.net.received import Received


class Stage(Enum):
    """How far the newest request came."""

    PENDING = auto()
    """No HTTP request has ended; of a server that is not reached over HTTP, none ever does."""
    NOT_SENT = auto()
    """No tool was reached, and there is no connection: a new one may reach it."""
    REJECTED = auto()
    """No tool was reached, says an HTTP status, and a new connection would reach none either."""
    STREAMING = auto()
    """The server answers with an event stream, which has not broken off."""
    ANSWERED = auto()
    """The server answered in MCP's own terms."""
    REFUSED = auto()
    """An HTTP status says that the request was not taken; the connection holds."""
    UNUSABLE = auto()
    """The server answered what cannot be read: a tool may have run."""
    SERVER_ERROR = auto()
    """An HTTP status says that it failed, perhaps after a tool ran; the connection holds."""
    LOST = auto()
    """It was sent, and the connection ended before the answer: a tool may have run."""


@dataclass(slots=True)
class RequestOutcome:
    """The stage of the requests that one call, one listing or one handshake makes, one by one.

    `reason` says in a few words why there is no answer. A handshake stops at the first failure of
    its connection; `on_stream_end` is called when an event stream ends that nobody closed.
    `received` counts all that comes back, until the block of `recording` ends; it is None for what
    a connection is sent beside its calls.
    """

    stage: Stage = Stage.PENDING
    reason: str | None = None
    is_handshake: bool = False
    on_stream_end: Callable[[], None] | None = None
    received: Received | None = field(default_factory=Received)

    def record(self, stage: Stage, reason: str | None = None) -> None:
        """Change the stage.

        Once the server was reached, NOT_SENT counts as LOST. After LOST, only STREAMING (a resumed
        stream) can restore the call.
        """
        match self.stage, stage:
            case ((Stage.PENDING | Stage.NOT_SENT), _):
                pass
            case Stage.LOST, Stage.ANSWERED:
                return
            case Stage.LOST, Stage.UNUSABLE:
                stage = Stage.SERVER_ERROR
            case _, Stage.NOT_SENT:
                stage = Stage.LOST
            case (_, Stage.REJECTED) | (Stage.STREAMING | Stage.LOST, Stage.REFUSED):
                stage = Stage.SERVER_ERROR
        self.stage, self.reason = stage, reason

    @contextmanager
    def recording(self) -> Iterator[Self]:
        """Record here what becomes of the requests that are made within the block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)
            self.stop_counting()

    def stop_counting(self) -> None:
        """Give back what was counted: it is parsed, and kept no longer as it came."""
        if self.received is not None:
            self.received.release()
            self.received = None


_CURRENT: ContextVar[RequestOutcome] = ContextVar("mcp_request_outcome")


def current_outcome() -> RequestOutcome:
    """Give the outcome that the running request is recorded in; a new one if nobody asked."""
    return _CURRENT.get(None) or RequestOutcome(received=None)
