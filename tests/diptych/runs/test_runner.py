"""One run as its runner drives it: when it writes, and what it records at its end."""

import asyncio

import pytest
from support.doubles import (
    EPOCH,
    CountingClock,
    FunctionAgents,
    FunctionTools,
    ListeningModel,
    types,
)
from support.stories import now, virtually

from diptych.core.catalog import Catalog
from diptych.core.errors import StoreError
from diptych.core.events import Aborted, Offered, OwnerChanged, Replied, RunRequested, Streamed
from diptych.core.reducer import replay
from diptych.core.state import Phase
from diptych.ports import Delta
from diptych.ports.stores import Stores
from diptych.runs.backends import Backends
from diptych.runs.catalog_recorder import CatalogRecorder
from diptych.runs.definition import AgentDefinition
from diptych.runs.run_log import DEFERRED_SECONDS, FIRST_DEFERRED_SECONDS, RunLog
from diptych.runs.runner import Runner
from diptych.runs.timers import Deadline
from diptych.stores.memory.store import MemoryStore

RUN = f"run-{EPOCH}-0"
ENOUGH = Aborted("enough")
MISREAD, CALL = '{"tool": "nope"}', '{"tool": "stubborn"}'
HANG = {"content": "{}", "delay_ms": 1e9}


class TimingStore(MemoryStore):
    """Notes when what is appended."""

    def __init__(self):
        super().__init__(EPOCH)
        self.begun_at = now()
        self.appended = []

    async def append(self, records, lease, **about):
        await super().append(records, lease, **about)
        self.appended.append((round(now() - self.begun_at, 3), types(records)))


class AwayStore(MemoryStore):
    async def append(self, records, lease, **about):
        raise StoreError("away")


class WaitingModel(ListeningModel):
    """Streams its answer when it is told to."""

    def __init__(self, text):
        super().__init__("{}")
        self.text, self.may_speak = text, asyncio.Event()

    async def stream(self, request):
        await self.may_speak.wait()
        yield Delta(self.text)


async def stubborn(**_):
    """A tool whose result comes although it is cancelled."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "done all the same"


async def on_record(*events, model, store=None):
    """Give a runner of a run with these events on record, after its request; and its log."""
    store = store or MemoryStore(EPOCH)
    log = RunLog(RUN, "s", Stores(store, store, store, store, CountingClock()))
    log.lease = (await log.open(RunRequested("hi"), None)).lease
    if events:
        await log.append(events)
    backends = Backends(model, FunctionTools({"stubborn": stubborn}), FunctionAgents())
    catalogs = CatalogRecorder(AgentDefinition(), backends, store, CountingClock())
    return Runner(replay([RunRequested("hi"), *events]), backends, log, Deadline(), catalogs), log


def offered():
    return Offered(Catalog(FunctionTools({"stubborn": stubborn}).snapshot()[0]), "SYSTEM")


async def driven(*replies):
    """Give a runner that drives a run, its log and its task, after a second."""
    runner, log = await on_record(model=ListeningModel(*replies))
    task = asyncio.create_task(runner.drive(offered()))
    await asyncio.sleep(1)
    return runner, log, task


@virtually
async def test_what_leads_to_a_question_alone_is_written_a_little_later():
    slow = {"content": MISREAD, "delay_ms": 5_000}
    store = TimingStore()
    runner, _ = await on_record(model=ListeningModel(slow, HANG), store=store)
    task = asyncio.create_task(runner.drive(offered()))
    await asyncio.sleep(10)
    assert store.appended == [
        (FIRST_DEFERRED_SECONDS, ["offered"]),
        (5 + DEFERRED_SECONDS, ["model_reply", "action_error"]),
    ]
    runner.stop(ENOUGH)
    await task


@virtually
async def test_a_write_that_fails_later_ends_the_drive_at_once():
    runner, _ = await on_record(model=ListeningModel(HANG), store=AwayStore(EPOCH))
    with pytest.raises(StoreError):
        async with asyncio.timeout(1):
            await runner.drive(offered())


@virtually
async def test_a_result_that_comes_while_the_run_is_stopped_is_recorded():
    runner, log, task = await driven(CALL)
    runner.stop(ENOUGH)
    run = await task
    assert types(log.records)[-3:] == ["tool_call", "tool_result", "aborted"]
    assert run.end == ENOUGH


@virtually
async def test_a_result_that_comes_while_the_run_is_handed_over_is_recorded():
    runner, log, task = await driven(CALL)
    runner.hand_over()
    run = await task
    assert types(log.records)[-2:] == ["tool_call", "tool_result"]
    assert run.phase is Phase.ACT
    assert len(run.results) == 1


@virtually
async def test_an_answer_that_differs_while_the_run_is_stopped_replaces_the_one_on_record():
    model = WaitingModel("Good")
    runner, log = await on_record(offered(), Replied("{}"), Streamed("Hello"), model=model)
    task = asyncio.create_task(runner.drive(OwnerChanged()))
    await asyncio.sleep(1)
    model.may_speak.set()
    runner.stop(ENOUGH)
    await task
    assert types(log.records)[-3:] == ["answer_reset", "text", "aborted"]
    assert log.records[-3].metadata == {"from_seq": 4, "attempt": 2}
    assert log.records[-2].content == "Good"
