"""Runs, as everybody outside sees them: start one, follow it, end it, read it.

A run does not belong to the connection that asked for it, nor to the process: whoever wants to
see one follows it, here or at another replica; first what is on record, then live.

Not here: how a run proceeds (`loop`, `runner`), whose turn it is (`turns`), what a request looks
like (`http`).
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from diptych.errors import InvalidRequest, Overloaded, StoreError
from diptych.events import Aborted, Asked, Origin, Stop
from diptych.live import LiveRun, Observer, Reader, Stores, is_last
from diptych.messages import JSON, Message
from diptych.offering import Charter
from diptych.outgoing import Outside
from diptych.ports import Heard, Item, Notice, Once, RunEntry
from diptych.record import TERMINAL, Record
from diptych.run_ids import run_id_of
from diptych.texts import well_formed
from diptych.turns import Turns

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
SESSION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
CANCEL_SECONDS = 15.0  # for which a cancelled run's end is waited for: its owner may have to change
PATIENCE_SECONDS = 10.0  # for which a reader waits for a store that is away
_PAUSE_SECONDS = 0.2
ASK_SECONDS = 2.0  # after which its owner is asked again: it may have changed, or not have heard
HANDED_OVER = "handed_over"
"""The last notice of a process that is leaving: the run goes on, and is to be followed anew."""
_GOES_ON = "this process is leaving; the run goes on: follow it again with the last id"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, whatever protocol it came by.

    `messages` are the caller's, without system messages, the last one a user's. With a
    `session_id` only those after the last assistant message are new (loop.md §2). A request with
    the same `once` as an earlier one is that one, sent again.
    """

    messages: tuple[Message, ...]
    system: str = ""
    session_id: str | None = None
    origin: Origin = field(default_factory=Origin)
    once: Once | None = None


class Runs:
    """All runs of one agent: those of this process, and those in its store."""

    def __init__(
        self,
        charter: Charter,
        outside: Outside,
        stores: Stores,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._charter = charter
        self._stores = stores
        self._turns = Turns(charter, outside, stores, observers)
        self._elsewhere: dict[Reader, str] = {}  # who reads runs that other processes own
        self._is_closing = False
        self._has_closed = False

    @property
    def is_closing(self) -> bool:
        """Whether no new runs are taken any more."""
        return self._is_closing

    @property
    def live_count(self) -> int:
        """How many runs are queued or running here."""
        return len(self._turns)

    def open(self) -> None:
        """Take part in the ownership of sessions; needed once, where a store is shared."""
        self._turns.start()

    async def start(self, ask: Ask) -> RunEntry:
        """Accept a run: it is on record when this returns, and goes on whoever listens.

        Raises `InvalidRequest` for a request that makes no sense, `Overloaded` while there is no
        room or the process is about to end, `StoreError`.
        """
        self._admit()
        stores = self._stores
        session_id = _session_id(ask) or f"session-{stores.clock.token()}"
        is_known = ask.session_id is not None and await stores.sessions.knows(session_id)
        asked = _asked(ask, is_known=is_known)
        live = self._turns.new(run_id_of(stores.log.epoch, stores.clock.token()), session_id)
        live.is_first = ask.session_id is None
        try:
            opened = await live.open(asked, ask.once)
        except BaseException:
            if not live.has_begun:  # its turn may have come before the reply that was lost
                self._turns.drop(live)
            raise
        if opened.is_new:
            self._turns.take(live, opened.lease, asked.origin.seconds)
        else:
            self._turns.drop(live)
        return opened.entry

    async def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give what is on record after `after`, then what happens, up to the terminal record.

        What arrived together comes together. Notices come live only; `reset` is one, for a reader
        who has seen more than the store still has, `handed_over` another, the last of a process
        that is leaving. Raises `UnknownRun`, `LostRun` or `StoreError`.
        """
        place, patience = _Place(after), 0.0
        while True:
            live = self._found(run_id, place)
            records = live.records if live else await self._read(run_id, patience=patience)
            patience = PATIENCE_SECONDS  # who has been told something can wait
            is_over = is_last(records[-1])
            if batch := self._since(place, records):
                yield batch
            if is_over:
                return
            live = self._found(run_id, place)
            source = self._here(live, place) if live else self._there(run_id, place)
            async with aclosing(source) as batches:
                async for batch in batches:
                    yield batch
                    if any(map(is_last, batch)):  # a notice may come after it
                        return
            if self._has_closed:
                about: dict[str, JSON] = {
                    "run_id": run_id,
                    "last_seq": place.seq,
                    "message": _GOES_ON,
                }
                yield [Notice(HANDED_OVER, about)]
                return

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> RunEntry:
        """Abort a run and wait until its end is on record; one that has ended stays as it is.

        Where its owner has just died the end may be longer in coming: then the run as it is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._end(run_id, Aborted(reason))
        return await self._stores.log.entry(run_id)

    def is_followed(self, run_id: str) -> bool:
        """Say whether somebody follows a run at this process."""
        live = self._turns.find(run_id)
        return (live is not None and live.has_readers) or run_id in self._elsewhere.values()

    async def entry(self, run_id: str) -> RunEntry:
        return await self._stores.log.entry(run_id)

    async def entries(self, session_id: str | None = None) -> Sequence[RunEntry]:
        return await self._stores.log.entries(session_id)

    async def records(self, run_id: str, after: int = 0) -> Sequence[Record]:
        return await self._stores.log.read(run_id, after)

    def stop_admitting(self) -> None:
        """Refuse new runs from now on; those that are there go on."""
        self._is_closing = True
        self._turns.is_seeking = False

    async def close(self, seconds: float = 0.0) -> None:
        """Let the runs here end within `seconds`; those that are left are handed over, or aborted.

        In a store that ends with the process there is nobody to hand them to.
        """
        self.stop_admitting()
        await self._turns.idle(seconds)
        self._has_closed = True
        await self._turns.leave(Aborted("the agent is shutting down"))
        for reader in tuple(self._elsewhere):
            reader.end()

    def _admit(self) -> None:
        if self._is_closing:
            raise Overloaded("this agent is shutting down; try again later", retry_after=5)
        if self.live_count >= self._charter.max_runs:
            raise Overloaded(
                f"this agent has {self.live_count} unfinished runs, and takes no more at once"
            )

    async def _end(self, run_id: str, stop: Stop) -> None:
        """Have a run end, wherever it is; whoever owns it is asked until it has."""
        while not self._has_closed:
            if live := self._turns.find(run_id):
                self._turns.stop(live, stop)
                await live.ended.wait()
            entry = await self._stores.log.entry(run_id)
            if entry.status in TERMINAL:
                return
            await self._stores.owners.ask_end(run_id, stop)
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    async for _ in self.follow(run_id, entry.seq):
                        pass

    # Following

    def _found(self, run_id: str, place: "_Place") -> LiveRun | None:
        """Give a run that is owned here, unless its reader has been elsewhere and knows more."""
        live = self._turns.find(run_id)
        return live if live and len(live.records) >= place.seq else None

    async def _read(self, run_id: str, after: int = 0, patience: float = 0.0) -> Sequence[Record]:
        """Read a record; a store that is away is waited for, for `patience` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while True:
            try:
                return await self._stores.log.read(run_id, after)
            except StoreError:
                if loop.time() >= until or self._has_closed:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    def _since(self, place: "_Place", records: Sequence[Record]) -> Sequence[Item]:
        """Give what a reader has not seen of the record, or where it must go back to first.

        It must where the store had lost what it has seen: also if that has come about since, and
        the run has gone on. One who may have seen either goes back too.
        """
        seen = records[: place.seq]
        anew = (r.seq - 1 for r in seen if _begins_anew(r) and r not in place.beginnings)
        held = next(anew, len(seen))
        resets = [self._reset(held)] if held < place.seq else []
        place.seq = held
        return [*resets, *place.reached(records[held:])]

    async def _here(self, live: LiveRun, place: "_Place") -> AsyncGenerator[Sequence[Item]]:
        """Follow a run that is owned here, until it ends or goes elsewhere."""
        reader = live.join(place.seq)
        try:
            while heard := await reader.next():
                place.reached([item for item in heard if isinstance(item, Record)])
                yield [item for item in heard if item is not None]
        finally:
            live.leave(reader)

    async def _there(self, run_id: str, place: "_Place") -> AsyncGenerator[Sequence[Item]]:
        """Follow a run that another process owns."""
        reader = Reader()
        unwatch = await self._stores.feed.watch(run_id, reader.put)
        self._elsewhere[reader] = run_id
        if self._has_closed:
            reader.end()
        try:
            if records := await self._read(run_id, place.seq, PATIENCE_SECONDS):
                yield place.reached(records)  # what happened before the watch began
            while heard := await reader.next():
                if batch := await self._caught_up(run_id, place, heard):
                    yield batch
        finally:
            del self._elsewhere[reader]
            unwatch()

    async def _caught_up(
        self, run_id: str, place: "_Place", heard: Sequence[Heard]
    ) -> Sequence[Item]:
        """Give what is new in what was heard; what was missed is read from the record."""
        batch: list[Item] = []
        for item in heard:
            if isinstance(item, Notice):
                if item.type != HANDED_OVER:  # that another process leaves ends nothing here
                    batch.append(item)
            elif item is None or item.seq > place.seq + 1:
                records = await self._read(run_id, patience=PATIENCE_SECONDS)
                batch += self._since(place, records)
            elif item.seq == place.seq + 1:
                batch += place.reached([item])
            elif _begins_anew(item) and item not in place.beginnings:
                batch += [self._reset(item.seq - 1), *place.reached([item])]
        return batch

    def _reset(self, last_seq: int) -> Notice:
        """Tell that what a reader has seen after `last_seq` is not on record any more."""
        return Notice("reset", {"epoch": self._stores.log.epoch, "last_seq": last_seq})


@dataclass(slots=True)
class _Place:
    """How far the reader of a run has come.

    `beginnings` are the records that it has seen with which a run began anew after a loss.
    """

    seq: int
    beginnings: list[Record] = field(default_factory=list)

    def reached(self, records: Sequence[Record]) -> Sequence[Record]:
        self.seq = records[-1].seq if records else self.seq
        self.beginnings += filter(_begins_anew, records)
        return records


def _begins_anew(record: Record) -> bool:
    """Say whether a new owner found that the store had lost what came after."""
    return record.event_type == "owner_changed" and bool(record.metadata.get("lost_tail"))


def _session_id(ask: Ask) -> str | None:
    if ask.session_id is None or SESSION_ID.fullmatch(ask.session_id):
        return ask.session_id
    raise InvalidRequest(
        "a session id has 1 to 128 of the characters A-Z a-z 0-9 . _ -", param="session_id"
    )


def _asked(ask: Ask, *, is_known: bool) -> Asked:
    """Find what is new in a request: of a session that is known, what follows the last answer."""
    messages = ask.messages
    if not messages or messages[-1].role != "user":
        raise InvalidRequest("the last message must be the user's", param="messages")
    if is_known:
        answers = [n for n, message in enumerate(messages) if message.role == "assistant"]
        messages = messages[answers[-1] + 1 :] if answers else messages
    earlier = tuple(Message(m.role, well_formed(m.content)) for m in messages[:-1])
    origin = ask.origin
    if not _TRACEPARENT.fullmatch(origin.traceparent or ""):  # W3C Trace Context, 3.2.2
        origin = replace(origin, traceparent=None)
    return Asked(well_formed(messages[-1].content), earlier, well_formed(ask.system), origin)
