"""The log of a run as its owner writes it: what is recorded, and who is told of it when."""

import asyncio
from uuid import UUID

from support.doubles import EPOCH, CountingClock, types

from diptych.core.errors import LogTruncated
from diptych.core.events import OwnerChanged, RunRequested, Streamed
from diptych.ports import Notice
from diptych.ports.stores import Stores
from diptych.runs.run_log import PROGRESS, RunLog
from diptych.stores.memory.store import MemoryStore

RUN = f"run-{EPOCH}-0"
CALL, OTHER = Notice(PROGRESS, {"step": 1}), Notice("tool_progress")


class PublishingFeed:
    """Remembers what was published."""

    def __init__(self):
        self.published = []

    def publish_notice(self, run_id, item):
        self.published.append((run_id, item))


class ForgetfulStore(MemoryStore):
    """Has lost the records after `keeps`, until they are put back."""

    keeps = None

    def __init__(self):
        super().__init__(EPOCH)
        self.appended = []

    async def append(self, records, lease, **about):
        seqs = [record.seq for record in records]
        if self.keeps is not None and seqs[0] > self.keeps + 1:
            raise LogTruncated(self.keeps)
        self.keeps = None
        self.appended.append(seqs)


def run_log(store=None, observers=(), run_id=RUN):
    store = store or MemoryStore(EPOCH)
    stores = Stores(store, store, store, PublishingFeed(), CountingClock())
    return RunLog(run_id, "s", stores, observers)


async def opened(store=None, observers=()):
    log = run_log(store, observers)
    log.lease = (await log.open(RunRequested("hi"), None)).lease
    return log


async def taken(buffer):
    return types(await buffer.take())


async def test_events_are_recorded_with_the_next_numbers_and_then_told():
    told = []
    log = await opened(observers=(told.append,))
    buffer = log.subscribe(0)
    await log.append([Streamed("a"), OTHER, Streamed("b")])
    assert [record.seq for record in log.records] == [1, 2, 3]
    assert await log._stores.log.read(RUN) == log.records
    expected = ["user_message", "text", "[tool_progress]", "text"]
    assert types(told) == await taken(buffer) == expected
    assert log._stores.feed.published == [(RUN, OTHER)]


async def test_a_subscriber_gets_the_progress_before_each_call_in_its_place():
    log = await opened()
    log.notify(CALL)
    await log.append([Streamed("a")])
    log.notify(OTHER)
    log.notify(CALL)
    log.notify(CALL)
    progress = "[progress]"
    assert await taken(log.subscribe(0)) == ["user_message", progress, "text", progress, progress]
    assert await taken(log.subscribe(1)) == [progress, "text", progress, progress]
    assert await taken(log.subscribe(2)) == [progress, progress]
    assert types(log.with_progress(log.records[:1], 0)) == ["user_message"]
    assert types(log.with_progress(log.records[1:], 1)) == [progress, "text"]


async def test_a_subscriber_of_a_closed_log_gets_the_records_and_the_end():
    log = await opened()
    log.close()
    buffer = log.subscribe(0)
    async with asyncio.timeout(5):
        assert (await taken(buffer), await taken(buffer)) == (["user_message"], [])


async def test_records_that_the_store_has_lost_are_put_back_before_the_next():
    store = ForgetfulStore()
    log = await opened(store)
    await log.append([Streamed("a"), Streamed("b")])
    store.keeps = 1
    await log.append([OwnerChanged()])
    assert store.appended == [[2, 3], [2, 3], [4]]


async def test_each_delegation_has_a_context_of_its_own_which_is_a_uuid():
    log = run_log()
    first, second = log.new_context_id(), log.new_context_id()
    assert str(UUID(first)) == first  # LangGraph 0.16 answers any other with an internal error
    assert first != second
