"""A request to a busy session: it waits, is refused, or interrupts (loop.md §6)."""

import asyncio

import pytest
from support.budgeted import home_with, used
from support.doubles import house, types
from support.replicas import LOST, ask, replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, virtually

from diptych.core.codec import TERMINAL
from diptych.core.errors import SessionBusy
from diptych.core.messages import Message
from diptych.ports.entries import IdempotencyKey
from diptych.runs.definition import AgentDefinition
from diptych.runs.request import RunRequest

SLOW = {"content": "{}", "delay_ms": 5_000}
ECHOES = ("{}", "Yes.") * 20


def to(session_id="s", text="hi", **rest):
    return RunRequest((Message("user", text),), session_id=session_id, **rest)


@virtually
async def test_a_busy_session_refuses_and_an_idle_one_takes():
    rooms = house(SLOW, "Hello.", definition=AgentDefinition(when_busy="reject"))
    first = await rooms.runs.start(to())
    with pytest.raises(SessionBusy):
        await rooms.runs.start(to())
    assert (await rooms.runs.start(to("other"))).status == "queued"
    assert (await rooms.runs.start(to(when_busy="enqueue"))).status == "queued"
    await rooms.told(first.run_id)
    await rooms.runs.close(1_000)
    assert len(await rooms.runs.entries("s")) == 2, "what is refused leaves nothing"


@pytest.mark.parametrize("tokens", [10**9, 10**5], ids=["far from the limit", "near it"])
@virtually
async def test_whoever_was_told_of_the_end_of_a_run_finds_its_session_idle(tokens):
    rooms = home_with(*ECHOES, day={"tokens": tokens})
    for _ in range(5):
        run = await rooms.runs.start(to(when_busy="reject"))
        assert types(await rooms.told(run.run_id))[-1] == "completed"
    await rooms.runs.close(1_000)
    assert (await used(rooms)).model_calls == 10


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another process"])
@virtually
async def test_it_interrupts_what_goes_before_it_wherever_that_runs(elsewhere):
    store = SharedStore()
    definition = AgentDefinition(when_busy="interrupt")
    a, b = (replica(store, n, SLOW, *ECHOES, definition=definition) for n in "ab")
    first = await begin(a, "one", session_id="s")
    second = await begin(a, "two", session_id="s", when_busy="enqueue")
    await asyncio.sleep(1)
    at = b if elsewhere else a
    third = (await at.run(at.runs.start(ask("three", "s")))).run_id
    assert [log(store, run)[-1].event_type for run in (first, second)] == ["aborted", "aborted"]
    assert "newer message" in log(store, first)[-1].content
    await told(at, third)
    assert log(store, third)[-1].event_type == "completed"


@virtually
async def test_one_that_cannot_interrupt_waits_for_its_turn():
    store = SharedStore()
    definition = AgentDefinition(when_busy="interrupt")
    a, b = (replica(store, n, SLOW, *ECHOES, definition=definition) for n in "ab")
    first = await begin(a, "one", session_id="s")
    await asyncio.sleep(1)
    b.trouble = lambda call: LOST if call.name == "demand" else None
    second = (await b.run(b.runs.start(ask("two", "s")))).run_id
    await told(b, second)
    assert [log(store, run)[-1].event_type for run in (first, second)] == ["completed"] * 2


@virtually
async def test_one_that_interrupts_and_is_sent_again_does_not_interrupt_itself():
    rooms = house(SLOW, "Hello.", definition=AgentDefinition(when_busy="interrupt"))
    key = IdempotencyKey("k", "d")
    first = await rooms.runs.start(to(idempotency_key=key))
    await rooms.runs.start(to(idempotency_key=key))
    await rooms.told(first.run_id)
    assert (await rooms.runs.entry(first.run_id)).status == "completed"


@virtually
async def test_of_a_storm_of_interruptions_one_is_heard_and_each_run_ends_once():
    store = SharedStore()
    definition = AgentDefinition(when_busy="interrupt")
    at = [replica(store, n, *[SLOW, "Yes."] * 60, definition=definition) for n in "ab"]
    gates = [at[n % 2].run(at[n % 2].runs.start(ask(f"{n}", "s"))) for n in range(50)]
    entries = await asyncio.gather(*gates)
    runs = [entry.run_id for entry in entries]
    for run in runs:
        await told(at[0], run)
    ends = {
        run: [r.event_type for r in log(store, run) if r.event_type in TERMINAL] for run in runs
    }
    assert all(len(each) == 1 for each in ends.values()), ends
    assert sorted(each[0] for each in ends.values()) == ["aborted"] * 49 + ["completed"]
    last = (await at[1].run(at[1].runs.start(ask("and now", "s")))).run_id
    await told(at[1], last)
    assert log(store, last)[-1].event_type == "completed"
