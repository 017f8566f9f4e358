"""Who owns a run: start it, take it through its session's queue, follow it, cancel it.

A run does not belong to the connection that asked for it. Whoever wants to see one follows it:
first what is on record, then live. Runs of one session go one after another.

Not here: how a run proceeds (`loop`, `runner`), what a request looks like (`http`).
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from diptych.errors import InvalidRequest, Overloaded
from diptych.events import Asked, Failed, Offered, Terms
from diptych.live import Item, LiveRun, Observer, Stores
from diptych.loop import Run, advance
from diptych.messages import Message
from diptych.offers import Offers
from diptych.ports import Notice, RunEntry
from diptych.prompt import system_prompt
from diptych.record import TERMINAL, Record, kept_form
from diptych.runner import Origin, Outside, Runner
from diptych.texts import well_formed

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, whatever protocol it came by.

    `messages` are the caller's, without system messages, the last one a user's. With a
    `session_id` only those after the last assistant message are new (loop.md §2). `seconds` is
    what the caller's own deadline leaves; `path` and `traceparent` are as in `runner.Origin`.
    """

    messages: tuple[Message, ...]
    system: str = ""
    session_id: str | None = None
    seconds: float | None = None
    path: tuple[str, ...] = ()
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Charter:
    """What the manifest says of every run of an agent; `seconds` is its `loop.deadline`.

    `newer` reads the instructions anew for each run, if they stand in a file that may change.
    """

    instructions: str = ""
    terms: Terms = field(default_factory=Terms)
    seconds: float | None = 300.0
    max_runs: int = 1_000  # queued and running, all sessions together
    newer: Callable[[], str | None] | None = None

    @property
    def current_instructions(self) -> str:
        return (self.newer and self.newer()) or self.instructions


class Runs:
    """All runs of one agent in this process."""

    def __init__(
        self,
        charter: Charter,
        outside: Outside,
        stores: Stores,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._charter = charter
        self._outside = outside
        self._stores = stores
        self._observers = tuple(observers)
        self._live: dict[str, LiveRun] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._offered: tuple[Offered, bytes] | None = None
        self._basis: tuple[str, Offers] | None = None  # what the above was made of
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether no new runs are taken any more."""
        return self._is_closing

    @property
    def live_count(self) -> int:
        """How many runs are queued or running."""
        return len(self._live)

    async def start(self, ask: Ask) -> RunEntry:
        """Accept a run: it is on record when this returns, and goes on whoever listens.

        Raises `InvalidRequest` for a request that makes no sense, `Overloaded` while there is no
        room or the process is about to end, `StoreError`.
        """
        self._admit()
        clock, log = self._stores.clock, self._stores.log
        session_id = _session_id(ask) or f"session-{clock.token()}"
        asked = _asked(ask, await log.entries(session_id))
        run_id = f"run-{log.epoch}-{clock.token()}"
        live = LiveRun(run_id, session_id, self._stores, self._observers)
        if ask.seconds is not None:
            live.late_at = asyncio.get_running_loop().time() + ask.seconds
        self._live[run_id] = live
        try:
            entry = await live.open(asked)
        except BaseException:
            del self._live[run_id]
            raise
        turn = self._turns.setdefault(session_id, asyncio.Lock())  # fair: first come first served
        live.task = asyncio.create_task(self._carry(live, turn, ask, asked))
        live.task.add_done_callback(lambda _: self._forget(live))
        return entry

    async def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give what is on record after `after`, then what happens, up to the terminal record.

        What arrived together comes together. Notices come live only. Raises `UnknownRun` or
        `LostRun`.
        """
        live = self._live.get(run_id)
        reader = live.join() if live else None
        try:
            batch: Sequence[Item] = await self._stores.log.read(run_id, after)
            while True:
                if batch:
                    yield batch
                if _is_last(batch) or reader is None:
                    return
                after = max((i.seq for i in batch if isinstance(i, Record)), default=after)
                if not (arrived := await reader.next()):
                    return
                batch = [i for i in arrived if isinstance(i, Notice) or i.seq > after]
        finally:
            if live and reader:
                live.leave(reader)

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> RunEntry:
        """Abort a run and wait until its end is on record; one that has ended stays as it is."""
        if live := self._live.get(run_id):
            live.abort(reason)
            if live.task:
                await asyncio.wait([live.task])
        return await self._stores.log.entry(run_id)

    async def entry(self, run_id: str) -> RunEntry:
        return await self._stores.log.entry(run_id)

    async def entries(self, session_id: str | None = None) -> Sequence[RunEntry]:
        return await self._stores.log.entries(session_id)

    async def records(self, run_id: str, after: int = 0) -> Sequence[Record]:
        return await self._stores.log.read(run_id, after)

    def stop_admitting(self) -> None:
        """Refuse new runs from now on; those that are there go on."""
        self._is_closing = True

    async def close(self, seconds: float = 0.0) -> None:
        """Let the live runs end within `seconds`, then abort those that are left."""
        self.stop_admitting()
        tasks = [live.task for live in self._live.values() if live.task]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for live in tuple(self._live.values()):
            live.abort("the agent is shutting down")
        if left := [live.task for live in self._live.values() if live.task]:
            await asyncio.wait(left)

    def _forget(self, live: LiveRun) -> None:
        live.release()
        self._live.pop(live.run_id, None)

    def _admit(self) -> None:
        if self._is_closing:
            raise Overloaded("this agent is shutting down; try again later", retry_after=5)
        if len(self._live) >= self._charter.max_runs:
            raise Overloaded(
                f"this agent has {len(self._live)} unfinished runs, and takes no more at once"
            )

    async def _carry(self, live: LiveRun, turn: asyncio.Lock, ask: Ask, asked: Asked) -> None:
        """Wait for the session's turn, and take the run to its end."""
        run, _ = advance(Run(), asked)
        if end := await live.await_turn(turn):
            await live.finish(run, end)
            return
        try:
            await self._run(live, ask, asked)
        except Exception:  # noqa: BLE001 - whatever broke: the run ends, and its followers hear it
            _log.exception("run %s broke", live.run_id)
            await live.finish(live.run or run, Failed("internal_error", "the agent failed inside"))
        finally:
            turn.release()

    async def _run(self, live: LiveRun, ask: Ask, asked: Asked) -> None:
        history = await self._stores.sessions.conversation(live.session_id)
        run, _ = advance(Run(history=history), asked)
        if self._charter.seconds is not None:
            late_at = asyncio.get_running_loop().time() + self._charter.seconds
            live.late_at = min(late_at, live.late_at or late_at)
        is_trace = _TRACEPARENT.fullmatch(ask.traceparent or "")  # W3C Trace Context, 3.2.2
        origin = Origin(ask.path, ask.traceparent if is_trace else None)
        runner = Runner(run, self._outside, live, origin, live.late_at)
        live.drive_by(runner)
        await runner.write(await self._offer())
        run = await runner.drive()
        await self._stores.sessions.conclude(live.run_id, run.messages)

    async def _offer(self) -> Offered:
        """Take the offers as they are now; what has not changed is not put into words again."""
        tools, servers = self._outside.tools.offered()
        agents, missing = self._outside.agents.offered()
        offers = Offers(tools, agents, (*servers, *missing))
        instructions = self._charter.current_instructions
        if self._offered is None or self._basis != (instructions, offers):
            text = system_prompt(instructions, offers)
            self._basis = (instructions, offers)
            self._offered = kept_form(offers, text, self._charter.terms)
        offered, blob = self._offered
        await self._stores.log.keep(offered.key, blob)
        return offered


def _session_id(ask: Ask) -> str | None:
    if ask.session_id is None or SESSION_ID.fullmatch(ask.session_id):
        return ask.session_id
    raise InvalidRequest(
        "a session id has 1 to 128 of the characters A-Z a-z 0-9 . _ -", param="session_id"
    )


def _asked(ask: Ask, earlier_runs: Sequence[RunEntry]) -> Asked:
    """Find what is new in a request: of a session that is known, what follows the last answer."""
    messages = ask.messages
    if not messages or messages[-1].role != "user":
        raise InvalidRequest("the last message must be the user's", param="messages")
    if earlier_runs:
        answers = [n for n, message in enumerate(messages) if message.role == "assistant"]
        messages = messages[answers[-1] + 1 :] if answers else messages
    earlier = tuple(Message(m.role, well_formed(m.content)) for m in messages[:-1])
    return Asked(well_formed(messages[-1].content), earlier, well_formed(ask.system))


def _is_last(batch: Sequence[Item]) -> bool:
    last = batch[-1] if batch else None
    return isinstance(last, Record) and last.event_type in TERMINAL
