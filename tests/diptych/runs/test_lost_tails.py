"""A store that loses the newest records of a run together with its owner (loop.md §9).

Stories in virtual time, as `test_takeover`; each was found by a seed of `test_simulation_owners`.
"""

import asyncio

import pytest
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import SLOWLY, Counted, begin, ends, log, virtually

from diptych.core.codec import Record
from diptych.core.events import Origin
from diptych.core.run_settings import RunSettings
from diptych.ports import Notice
from diptych.runs.definition import AgentDefinition

TWO_CALLS = '[{"tool": "charge"}, {"tool": "charge", "arguments": {"n": 2}}]'
ONE_BY_ONE = AgentDefinition("", RunSettings(max_parallel_calls=1))


def held(heard):
    """Give the records that a reader holds for true at the end, for it goes back at each reset."""
    records = []
    for item in heard:
        if isinstance(item, Record):
            records.append(item)
        elif item.type == "reset":
            records = [record for record in records if record.seq <= item.fields["last_seq"]]
    return records


@virtually
async def test_a_call_whose_start_is_lost_is_not_begun_by_the_next_owner():
    store, charge = SharedStore(), Counted()
    options = {"tools": charge.tools, "definition": ONE_BY_ONE}
    a, b = (replica(store, n, TWO_CALLS, "{}", "Sorry.", **options) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(4)
    assert charge.count == 2
    a.kill()
    store.lose_tail(run_id, 2)
    assert [r.event_type for r in log(store, run_id)][-1] == "tool_call", "the first, without end"
    heard = await told(b, run_id)
    unknown = [r for r in held(heard) if r.event_type == "tool_error"]
    assert [r.metadata["error"] for r in unknown] == ["unknown", "unknown"]
    assert charge.count == 2


@pytest.mark.parametrize(
    "is_late", [pytest.param(True, id="no time left"), pytest.param(False, id="cancelled")]
)
@virtually
async def test_who_reads_a_run_that_ends_in_the_queue_hears_what_was_lost_before(is_late):
    store = SharedStore()
    a, b = (replica(store, n, "{}", SLOWLY) for n in "ab")
    run_id = await begin(a, origin=Origin(seconds=5.0 if is_late else None))
    await asyncio.sleep(2)
    a.kill()
    store.lose_tail(run_id, len(log(store, run_id)) - 1)
    if not is_late:
        b.spawn(b.runs.cancel(run_id))
    reader = await told(b, run_id)
    for seen in (2, 3):
        heard = await told(b, run_id, seen)
        assert heard[0] == Notice("reset", {"epoch": store.epoch, "last_seq": 1})
        assert held(heard) == held(reader)[1:] == log(store, run_id)[1:]
    assert ends(reader) == ["failed" if is_late else "aborted"]


@virtually
async def test_a_reader_who_was_there_before_its_process_owned_the_run_is_told():
    store = SharedStore()
    first, a, b = (replica(store, n, "{}", SLOWLY) for n in ("first", "a", "b"))
    b.runs.stop_admitting()  # it takes nothing up yet
    run_id = await begin(first)
    reader = asyncio.create_task(told(a, run_id))
    await asyncio.sleep(1.5)
    first.kill()
    while log(store, run_id)[-1].event_type != "owner_changed":  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await asyncio.sleep(3)
    a.loses_messages = lambda: True  # it hears that it missed some, not which
    store.lose_tail(run_id, 2)
    a.freeze(40.0)
    b.runs._lease_keeper.takes_over = True
    await told(b, run_id)
    async with asyncio.timeout(60):  # or it would wait for ever
        assert held(await reader) == log(store, run_id)
