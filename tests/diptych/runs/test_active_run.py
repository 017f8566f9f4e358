"""One run in the queue of a session: its stages, and the signals that come before its runner."""

import asyncio

from support.doubles import CountingClock
from support.stories import virtually

from diptych.core.catalog import Catalog
from diptych.core.events import Aborted, Failed, MessageQueued, Offered, RunRequested
from diptych.core.reducer import replay
from diptych.core.state import MAX_MESSAGES_PER_RUN, Phase, Run
from diptych.ports.stores import Stores
from diptych.runs.active_run import ActiveRun, Stage
from diptych.runs.run_log import RunLog
from diptych.stores.memory.leases import NullFeed
from diptych.stores.memory.store import MemoryStore

ENOUGH, LATE = Aborted("enough"), Failed("deadline_exceeded", "late")
EVENTS = [RunRequested("hi"), Offered(Catalog(), "SYSTEM")]


class RecordingRunner:
    """A runner that remembers what it was told."""

    def __init__(self):
        self.run = Run()
        self.told = []

    def stop(self, stop):
        self.told.append(stop)

    def signal(self, signal):
        self.told.append(signal)

    def hand_over(self):
        self.told.append("hand over")


def message(n):
    return MessageQueued(f"text {n}", f"m-{n}")


def active_run(stage=Stage.QUEUED):
    store = MemoryStore("0000000a")
    stores = Stores(store, store, store.leases, NullFeed(), CountingClock())
    active = ActiveRun(RunLog("run-0000000a-0", "s", stores))
    if stage is not Stage.QUEUED:
        assert active.begin(stage)
    return active


async def opened():
    """Give an active run that is on record, and its first events applied."""
    active = active_run(Stage.EXECUTING)
    active.log.lease = (await active.log.open(EVENTS[0], None)).lease
    await active.log.append(EVENTS[1:])
    return active, replay(EVENTS)


def event_types(active):
    return [record.event_type for record in active.log.records]


async def test_what_comes_before_the_runner_is_told_to_it_in_order():
    active, runner = active_run(Stage.EXECUTING), RecordingRunner()
    active.signal(message(1))
    active.signal(ENOUGH)
    active.signal(message(2))
    active.attach(runner)
    assert runner.told == [message(1), message(2), ENOUGH]
    assert active.mailbox.take() == ()


async def test_the_first_reason_to_stop_counts():
    active, runner = active_run(Stage.EXECUTING), RecordingRunner()
    active.attach(runner)
    assert active.stop(ENOUGH)
    assert not active.stop(LATE)
    assert active.stop_requested == ENOUGH
    assert runner.told == [ENOUGH]


async def test_messages_are_bounded_before_there_is_a_runner():
    active = active_run()
    for n in range(MAX_MESSAGES_PER_RUN):
        assert active.signal(message(n))
    assert not active.signal(message(MAX_MESSAGES_PER_RUN))
    assert active.signal(message(0)), "one that is sent again is taken already"
    assert len(active.mailbox.take()) == MAX_MESSAGES_PER_RUN


@virtually
async def test_its_age_counts_from_its_first_record():
    active = active_run()
    await asyncio.sleep(2)
    assert active.age == 2
    active.was_opened(5)
    await asyncio.sleep(2)
    assert active.age == 7
    active.was_opened(-5)  # another process wrote it, whose clock is ahead
    assert active.age == 0


async def test_an_end_without_a_runner_comes_after_the_messages_that_were_not_recorded():
    active, run = await opened()
    active.signal(message(1))
    ended = await active.finish(run, ENOUGH)
    assert event_types(active) == ["user_message", "offered", "user_message", "aborted"]
    assert ended.phase is Phase.DONE
    assert ended.queues.message_ids == {"m-1"}
    assert await active.finish(ended, LATE) is ended
    assert len(active.log.records) == len(EVENTS) + 2
