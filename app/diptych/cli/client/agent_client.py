"""The contract of a client: what the command line can do with an agent, wherever it runs."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from diptych.core.catalog import Unavailable
from diptych.ports import Item, Notice


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The ids of a run that the agent has confirmed."""

    run_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Which tool servers and agents are unavailable now, and whether a script is the model."""

    unavailable: Sequence[Unavailable] = ()
    is_scripted: bool = False


Choice = Literal["approve", "reject"]
"""What a person at the terminal may decide."""

NoticeHandler = Callable[[Notice], None]
"""Takes the notices that come before the run's first record."""


def ignore_notice(notice: Notice) -> None:
    """Drop a notice."""


class AgentClient(Protocol):
    """An agent that takes questions. Every method raises a `DiptychError` if it is unreachable."""

    name: str

    async def availability(self) -> Availability: ...

    async def start(
        self, question: str, session_id: str | None, on_notice: NoticeHandler = ignore_notice
    ) -> StartedRun:
        """Start a run, in a new session if `session_id` is None."""
        ...

    def subscribe(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give a run's records with a `seq` above `after`, then its live items, to its end."""
        ...

    async def decide(self, run_id: str, call_id: str, decision: Choice, reason: str) -> None:
        """Decide on a call that waits. Raises a `DiptychError` if somebody has decided before."""
        ...

    async def send(self, run_id: str, message: str, *, is_follow_up: bool = False) -> None:
        """Send a message to a run that goes on: to steer it, or for its next turn."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, and return once its terminal event is recorded."""
        ...
