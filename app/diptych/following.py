"""Following a run: first what is on record, then live, here or at the process that owns it.

Not here: what becomes of what was heard (`http`, `cli`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from diptych.errors import StoreError
from diptych.live import LiveRun, Reader, Stores, is_last
from diptych.messages import JSON
from diptych.ports import Heard, Item, Notice
from diptych.record import Record

PATIENCE_SECONDS = 10.0  # for which a reader waits for a store that is away
_PAUSE_SECONDS = 0.2
HANDED_OVER = "handed_over"
"""The last notice of a process that is leaving: the run goes on, and is to be followed anew."""
_GOES_ON = "this process is leaving; the run goes on: follow it again with the last id"


class Following:
    """All who follow runs at this process; `find` gives a run that is owned here."""

    def __init__(self, stores: Stores, find: Callable[[str], LiveRun | None]) -> None:
        self._stores = stores
        self._find = find
        self._elsewhere: dict[Reader, str] = {}  # who reads runs that other processes own
        self.has_closed = False

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
            if self.has_closed:
                about: dict[str, JSON] = {
                    "run_id": run_id,
                    "last_seq": place.seq,
                    "message": _GOES_ON,
                }
                yield [Notice(HANDED_OVER, about)]
                return

    def is_followed(self, run_id: str) -> bool:
        """Say whether somebody follows a run at this process."""
        live = self._find(run_id)
        return (live is not None and live.has_readers) or run_id in self._elsewhere.values()

    def close(self) -> None:
        """Tell whoever follows from now on, and those who wait for other processes, to go."""
        self.has_closed = True
        for reader in tuple(self._elsewhere):
            reader.end()

    def _found(self, run_id: str, place: "_Place") -> LiveRun | None:
        """Give a run that is owned here, unless its reader has been elsewhere and knows more."""
        live = self._find(run_id)
        return live if live and len(live.records) >= place.seq else None

    async def _read(self, run_id: str, after: int = 0, patience: float = 0.0) -> Sequence[Record]:
        """Read a record; a store that is away is waited for, for `patience` seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while True:
            try:
                return await self._stores.log.read(run_id, after)
            except StoreError:
                if loop.time() >= until or self.has_closed:
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
        if self.has_closed:
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
