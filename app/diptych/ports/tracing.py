"""The contract of tracing: what a run tells of itself while it happens, beside its record.

Records are told to observers; here is what is on no record: when the model is asked, and as part of
what calls are made. Nothing here raises, or waits for anything but the work that it is given.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from diptych.core.codec import Record
from diptych.core.commands import AskModel
from diptych.core.events import Event
from diptych.core.messages import NativeCall

T = TypeVar("T")


class RunTrace(Protocol):
    """The trace of one run, as long as this process executes it."""

    def asking(
        self, command: AskModel, ask: Callable[[], Coroutine[Any, Any, Event]]
    ) -> Coroutine[Any, Any, Event]:
        """Ask the model as part of this run's trace; `ask` gives what the reply ends as."""
        ...

    def reply_began(self) -> None:
        """Tell that the first of a streamed reply has come; called while the model is asked."""
        ...

    def reply_came(self, text: str, calls: Sequence[NativeCall], finish_reason: str) -> None:
        """Tell what the model has said in whole; called while it is asked, too."""
        ...

    def calling(
        self, call_id: str, make: Callable[[], Coroutine[Any, Any, T]]
    ) -> Coroutine[Any, Any, T]:
        """Make a call as part of this run's trace."""
        ...

    def traceparent(self, call_id: str) -> str | None:
        """Give what the receiver of a call goes on from (W3C Trace Context)."""
        ...


class Tracing(Protocol):
    """The traces of an agent's runs."""

    def of_run(
        self, run_id: str, session_id: str, records: Callable[[], Sequence[Record]]
    ) -> AbstractContextManager[RunTrace]:
        """Trace a run while the block lasts; its span ends with the run's end on record.

        `records` gives those on record. A run that another process goes on with is left to it.
        """
        ...
