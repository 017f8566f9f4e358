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
from diptych.events import Aborted, Asked, Event, Failed, Offered, Terms
from diptych.loop import Phase, Run, advance, ending
from diptych.messages import Message
from diptych.offers import Offers
from diptych.ports import Clock, EventLog, Notice, RunEntry, Sessions
from diptych.prompt import system_prompt
from diptych.record import TERMINAL, Record, kept_form, to_row
from diptych.runner import Origin, Outside, Runner

SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_WAITING = 1_000  # items that a slow reader has not read, after which it is told no notices
_log = logging.getLogger(__name__)

Item = Record | Notice
Observer = Callable[[Item], None]
"""Hears every record and notice of every run, as it happens. Must not block."""


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
    """What the manifest says of every run of an agent; `seconds` is its `loop.deadline`."""

    instructions: str = ""
    terms: Terms = field(default_factory=Terms)
    seconds: float | None = 300.0
    max_runs: int = 1_000  # queued and running, all sessions together


@dataclass(frozen=True, slots=True)
class Stores:
    """Where runs are kept, and what names and dates them."""

    log: EventLog
    sessions: Sessions
    clock: Clock


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
        self._live: dict[str, _LiveRun] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._offered: Offered | None = None
        self._offered_blob = b""
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
        session_id = _session_id(ask) or f"session-{self._stores.clock.token()}"
        asked = _asked(ask, await self._stores.log.entries(session_id))
        run_id = f"run-{self._stores.log.epoch}-{self._stores.clock.token()}"
        live = _LiveRun(run_id, session_id, self._stores, self._observers)
        self._live[run_id] = live
        try:
            await self._stores.log.open(run_id, session_id, self._stores.clock.now())
            await live.record(asked)
        except BaseException:
            del self._live[run_id]
            raise
        turn = self._turns.setdefault(session_id, asyncio.Lock())  # fair: first come first served
        live.task = asyncio.create_task(self._carry(live, turn, ask, asked))
        live.task.add_done_callback(lambda _: self._forget(live))
        return await self._stores.log.entry(run_id)

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

    def _forget(self, live: "_LiveRun") -> None:
        live.release()
        self._live.pop(live.run_id, None)

    def _admit(self) -> None:
        if self._is_closing:
            raise Overloaded("this agent is shutting down; try again later", retry_after=5)
        if len(self._live) >= self._charter.max_runs:
            raise Overloaded(
                f"this agent has {len(self._live)} unfinished runs, and takes no more at once"
            )

    async def _carry(self, live: "_LiveRun", turn: asyncio.Lock, ask: Ask, asked: Asked) -> None:
        """Wait for the session's turn, and take the run to its end."""
        run, _ = advance(Run(), asked)
        try:
            if live.end is None:
                live.is_waiting = True
                async with turn:
                    live.is_waiting = False
                    await self._run(live, ask, asked)
                return
        except asyncio.CancelledError:
            if live.end is None or not live.is_waiting:
                raise
        except Exception:  # noqa: BLE001 - whatever broke, the run ends on record and its followers hear of it
            _log.exception("run %s broke", live.run_id)
            await live.finish(live.run or run, Failed("internal_error", "the agent failed inside"))
            return
        await live.finish(run, live.end)  # aborted before its turn came

    async def _run(self, live: "_LiveRun", ask: Ask, asked: Asked) -> None:
        history = await self._stores.sessions.conversation(live.session_id)
        run, _ = advance(Run(history=history), asked)
        limits = [s for s in (ask.seconds, self._charter.seconds) if s is not None]
        origin = Origin(ask.path, ask.traceparent)
        runner = Runner(run, self._outside, live, origin, min(limits, default=None))
        live.drive_by(runner)
        await runner.take(await self._offer())
        run = await runner.drive()
        await self._stores.sessions.conclude(live.run_id, run.messages)

    async def _offer(self) -> Offered:
        """Take the offers as they are now; what has not changed is not put into words again."""
        tools, servers = self._outside.tools.offered()
        agents, missing = self._outside.agents.offered()
        offers = Offers(tools, agents, (*servers, *missing))
        if self._offered is None or self._offered.offers != offers:
            text = system_prompt(self._charter.instructions, offers)
            self._offered, self._offered_blob = kept_form(offers, text, self._charter.terms)
        await self._stores.log.keep(self._offered.key, self._offered_blob)
        return self._offered


class _Reader:
    """What one follower of a run has not read yet."""

    def __init__(self) -> None:
        self.is_ended = False
        self._items: list[Item] = []
        self._arrived = asyncio.Event()

    def put(self, item: Item) -> None:
        if isinstance(item, Notice) and len(self._items) >= MAX_WAITING:
            return  # a reader this slow misses notices; records it never misses
        self._items.append(item)
        self._arrived.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self.is_ended = True
        self._arrived.set()

    async def next(self) -> Sequence[Item]:
        """Wait for something, and give all that there is; nothing once the run has ended."""
        await self._arrived.wait()
        if not self.is_ended:
            self._arrived.clear()
        items, self._items = self._items, []
        return items


class _LiveRun:
    """A run that is queued or running here: the sink of its runner, the source of its readers."""

    def __init__(
        self, run_id: str, session_id: str, stores: Stores, observers: tuple[Observer, ...]
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.task: asyncio.Task[None] | None = None
        self.runner: Runner | None = None
        self.end: Aborted | None = None
        self.is_waiting = False  # for its session's turn: the only time when `task` is cancelled
        self._stores = stores
        self._observers = observers
        self._readers: set[_Reader] = set()
        self._is_over = False
        self._seq = 0

    @property
    def run(self) -> Run | None:
        return self.runner.run if self.runner else None

    async def record(self, event: Event) -> None:
        """Put an event on record, then tell it; fulfils `runner.Sink`."""
        event_type, content, metadata = to_row(event)
        now = self._stores.clock.now()
        seq = self._seq + 1
        record = Record(self.run_id, self.session_id, seq, event_type, now, content, metadata)
        await self._stores.log.append([record])
        self._seq = seq
        self._is_over = event_type in TERMINAL
        self._tell(record)

    def notice(self, notice: Notice) -> None:
        self._tell(notice)

    def abort(self, reason: str) -> None:
        """End the run, wherever it is; the first reason counts."""
        if self.end is not None:
            return
        self.end = Aborted(reason)
        if self.runner:
            self.runner.abort(reason)
        elif self.task and self.is_waiting:
            self.task.cancel()

    def drive_by(self, runner: Runner) -> None:
        """Have a runner from here on, which hears of an abort that came before it."""
        self.runner = runner
        if self.end:
            runner.abort(self.end.reason)

    async def finish(self, run: Run, end: Aborted | Failed) -> None:
        """Put an end on record that no runner can."""
        if run.phase is not Phase.DONE:
            for event in ending(run, end):
                await self.record(event)

    def new_context_id(self) -> str:
        return f"context-{self._stores.clock.token()}"

    def join(self) -> _Reader:
        reader = _Reader()
        if self._is_over:
            reader.end()
        self._readers.add(reader)
        return reader

    def release(self) -> None:
        """Let go of the readers: the run is over, even if nothing could be put on record."""
        self._is_over = True
        for reader in self._readers:
            reader.end()

    def leave(self, reader: _Reader) -> None:
        self._readers.discard(reader)

    def _tell(self, item: Item) -> None:
        for observe in self._observers:
            observe(item)
        for reader in self._readers:
            reader.put(item)


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
    return Asked(messages[-1].content, messages[:-1], ask.system)


def _is_last(batch: Sequence[Item]) -> bool:
    return any(isinstance(item, Record) and item.event_type in TERMINAL for item in batch[-1:])
