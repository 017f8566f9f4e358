"""Taking sessions over: how many, how soon, and from whom."""

import asyncio

from support.doubles import types
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import SLOWLY, TAKEN_UP, begin, log, virtually

from diptych.runs.definition import AgentDefinition
from diptych.runs.lease_keeper import TAKEOVER_SECONDS

HANG = {"content": "{}", "delay_ms": 1e9}


@virtually
async def test_a_process_takes_over_no_more_runs_than_it_may_have():
    store = SharedStore()
    a = replica(store, "a", HANG)
    for n in range(20):
        await begin(a, session_id=f"s{n}")
    b = replica(store, "b", HANG, definition=AgentDefinition(max_runs=2))
    a.kill()
    for _ in range(40):
        await asyncio.sleep(TAKEN_UP / 20)
        assert b.runs.active_count <= 2
    assert b.runs.active_count == 2


@virtually
async def test_an_orderly_hand_over_is_taken_up_at_once():
    store = SharedStore()
    a, b = replica(store, "a", "{}", SLOWLY), replica(store, "b", "{}", SLOWLY)
    run_ids = [await begin(a, session_id=f"s{n}") for n in range(3)]
    await asyncio.sleep(1.3 * TAKEOVER_SECONDS)  # after the first look, and well before the next
    await a.run(a.runs.close())
    await asyncio.sleep(TAKEOVER_SECONDS / 10)
    for run_id in run_ids:
        assert "owner_changed" in types(log(store, run_id))
        assert types(await told(b, run_id))[-1] == "completed"


@virtually
async def test_a_hand_over_that_nobody_hears_of_is_found_by_looking():
    store = SharedStore()
    a, b = replica(store, "a", "{}", SLOWLY), replica(store, "b", "{}", SLOWLY)
    b.loses_messages = lambda: True
    run_id = await begin(a)
    await asyncio.sleep(2)
    await a.run(a.runs.close())
    await asyncio.sleep(2 * TAKEOVER_SECONDS)
    assert any(r.event_type == "owner_changed" for r in log(store, run_id))
