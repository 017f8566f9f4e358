"""Taking sessions over: how many, how soon, and from whom."""

import asyncio

from support.doubles import house, types
from support.replicas import replica, told
from support.shared_store import LEASE_SECONDS, SharedStore
from support.stories import SLOWLY, TAKEN_UP, begin, log, virtually
from support.virtual_time import run_virtually

from diptych.core.messages import Message
from diptych.runs.definition import AgentDefinition
from diptych.runs.lease_keeper import TAKEOVER_SECONDS
from diptych.runs.request import RunRequest

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
async def test_a_process_without_sessions_only_looks_for_some_and_for_runs_that_are_overdue():
    names = []
    replica(SharedStore(), "a", trouble=lambda call: names.append((call.name, call.is_done)))
    await asyncio.sleep(50 * TAKEOVER_SECONDS)
    assert {name for name, _ in names} == {"unowned", "overdue"}
    assert names.count(("overdue", True)) >= 50 * TAKEOVER_SECONDS / 2.5 - 1
    assert 50 / 1.2 <= names.count(("unowned", True)) <= 50 / 0.8


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


def test_who_subscribes_after_the_first_call_sees_its_progress_all_the_same():
    async def story():
        async def work(**_):
            await asyncio.sleep(1)
            return "done"

        rooms = house('{"tool": "work"}', '{"tool": "work"}', "{}", "x", tools={"work": work})
        run_id = (await rooms.runs.start(_request())).run_id
        await asyncio.sleep(0.5)
        from_the_start = await rooms.told(run_id)
        return types(from_the_start)

    seen = run_virtually(story())
    assert seen.count("[progress]") == 2
    assert seen[:4] == ["user_message", "offered", "model_reply", "[progress]"]


def test_who_comes_back_with_its_last_id_is_not_told_earlier_progress_again():
    async def story():
        async def work(**_):
            await asyncio.sleep(1)
            return "done"

        rooms = house('{"tool": "work"}', '{"tool": "work"}', "{}", "x", tools={"work": work})
        run_id = (await rooms.runs.start(_request())).run_id
        await asyncio.sleep(1.5)  # in the second call
        records = await rooms.store.read(run_id)
        result = next(r.seq for r in records if r.event_type == "tool_result")
        return types(await rooms.told(run_id, result))

    assert run_virtually(story()).count("[progress]") == 1


def _request():
    return RunRequest((Message("user", "hi"),))


@virtually
async def test_a_lease_is_surely_held_from_when_it_was_asked_for():
    store = SharedStore()
    a, b = replica(store, "a", HANG), replica(store, "b", HANG)
    run_id = await begin(a, session_id="s")
    b.trouble = lambda call: 4.0 if call.name == "claim" and call.is_done else None
    a.kill()
    while (session := b.runs._scheduler._sessions.get("s")) is None:  # noqa: ASYNC110 - a moment
        await asyncio.sleep(0.01)
    now = asyncio.get_running_loop().time()
    assert session.owned_until - now < LEASE_SECONDS - 3.9
    assert "owner_changed" not in types(log(store, run_id))
