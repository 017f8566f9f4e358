"""Runs that are too large, or that owners died of: none takes more processes down than it must.

Stories of processes and a store, in virtual time, as `test_takeover`.
"""

import asyncio

import pytest
from support.doubles import types
from support.replicas import replica, told, when
from support.shared_store import LEASE_SECONDS, SharedStore
from support.stories import SLOWLY, TAKEN_UP, Hung, begin, ends, log, virtually

from diptych.core.errors import Overloaded, SubjectOverloaded
from diptych.core.events import MessageQueued
from diptych.net.memory_budget import ADMITTED, RUN_SIZE, MemoryBudget
from diptych.runs.turn_admission import LOADED, ROOM_SECONDS, SUSPECT_DEATHS, UNREAD_DEATHS

MI = 2**20


def failure(store, run_id):
    return log(store, run_id)[-1].metadata.get("code")


# What owners died of


@virtually
async def test_a_run_whose_owners_all_die_of_reading_it_is_ended_without_being_read():
    store = SharedStore()

    def poison(name):
        def befalls(call):
            if call.name == "read":  # as one that cannot even hold the run does
                made.kill()

        made = replica(store, name, model=Hung(), trouble=befalls)

    run_id = await begin(a := replica(store, "a", model=Hung()))
    await asyncio.sleep(1)
    a.kill()
    for name in "bcdefgh":
        poison(name)
        await asyncio.sleep(2 * TAKEN_UP)
    assert ends(log(store, run_id)) == ["failed"]
    assert failure(store, run_id) == "too_many_owners"
    assert store.runs[run_id].deaths == UNREAD_DEATHS
    assert store.sessions[store.runs[run_id].session_id].queue == []


@virtually
async def test_runs_that_two_owners_died_under_take_their_turns_one_by_one():
    store = SharedStore()
    first = replica(store, "first", model=Hung())
    runs = [await begin(first, f"Q{n}", f"s{n}") for n in range(3)]
    innocent = await begin(first, "Q", "other")
    await asyncio.sleep(1)
    first.kill()
    for run_id in runs:
        store.runs[run_id].deaths = SUSPECT_DEATHS - 1
    heir = replica(store, "heir", "{}", SLOWLY, "{}", SLOWLY, "{}", SLOWLY, "{}", SLOWLY)
    at_once = 0
    while not all(ends(log(store, run_id)) for run_id in [*runs, innocent]):
        active = [r for r in runs if (a := heir.runs._scheduler.find(r)) and a.run is not None]
        at_once = max(at_once, len(active))
        await asyncio.sleep(0.25)
    assert at_once == 1
    assert [ends(log(store, run_id)) for run_id in [*runs, innocent]] == [["completed"]] * 4


@virtually
async def test_a_rolling_upgrade_of_five_pods_counts_no_deaths_and_ends_no_run():
    store = SharedStore()
    owner = replica(store, "0", model=Hung())
    run_id = await begin(owner)
    for n in range(1, 6):
        await asyncio.sleep(1)
        heir = replica(store, str(n), model=Hung())
        await owner.run(owner.runs.close())
        await asyncio.sleep(2 * LEASE_SECONDS)
        owner = heir
    assert store.runs[run_id].deaths == 0
    assert types(log(store, run_id)).count("owner_changed") == 5
    assert not ends(log(store, run_id))


# What is too large


async def left_behind(store, count=1, size=0):
    """Have runs without an owner, and say how many bytes each has in the store."""
    owner = replica(store, "owner", model=Hung())
    runs = [await begin(owner, "Q", f"s{n}") for n in range(count)]
    await asyncio.sleep(1)
    owner.kill()
    for run_id in runs:
        store.runs[run_id].size = size
    return runs


@virtually
async def test_a_run_that_no_process_of_this_size_can_hold_is_ended_without_being_read():
    store = SharedStore()
    (run_id,) = await left_behind(store, size=10 * MI)
    reads = []
    replica(
        store,
        "small",
        memory_budget=MemoryBudget(LOADED * 10 * MI),
        trouble=lambda call: reads.append(call.name),
    )
    await asyncio.sleep(TAKEN_UP)
    assert ends(log(store, run_id)) == ["failed"]
    assert failure(store, run_id) == "out_of_memory"
    assert "read" not in reads


@virtually
async def test_runs_are_taken_up_as_far_as_there_is_room_and_the_rest_when_there_is():
    store = SharedStore()
    runs = await left_behind(store, count=6, size=MI)
    budget = MemoryBudget(int(2.5 * LOADED * MI / ADMITTED))
    heir = replica(store, "heir", *["{}", SLOWLY] * 6, memory_budget=budget)
    most = 0
    while not all(ends(log(store, run_id)) for run_id in runs):
        most = max(most, budget.used)
        await asyncio.sleep(0.25)
    assert most < ADMITTED * budget.limit
    assert [ends(log(store, run_id)) for run_id in runs] == [["completed"]] * 6
    await asyncio.sleep(1)
    assert budget.used == 0
    assert heir.runs.active_count == 0


@virtually
async def test_a_turn_for_which_there_is_no_room_for_long_goes_to_another_process():
    store = SharedStore()
    budget = MemoryBudget(int(2 * LOADED * MI / ADMITTED))
    a = replica(store, "a", "{}", "A0", model=None, memory_budget=budget)
    first = await begin(a, "Q0", "s")
    await told(a, first)
    held = budget.share()
    held.admit(int(1.5 * LOADED * MI))
    second = await begin(a, "Q1", "s")
    store.runs[second].size = MI
    b = replica(store, "b", "{}", "A1")
    await asyncio.sleep(ROOM_SECONDS + TAKEN_UP)
    assert ends(log(store, second)) == ["completed"]
    assert b.model.requests
    assert store.runs[second].deaths == 0


@virtually
async def test_a_run_that_grows_beyond_what_there_is_ends_and_the_others_go_on():
    async def grow(**_):
        return "x" * MI

    store, budget = SharedStore(), MemoryBudget(4 * MI)
    a = replica(store, "a", *['{"tool": "grow"}'] * 5, tools={"grow": grow}, memory_budget=budget)
    small = replica(store, "b", "{}", SLOWLY, memory_budget=budget)
    other = await begin(small, "Q", "other")
    run_id = await begin(a, "Q", "s")
    await asyncio.gather(told(a, run_id), told(small, other))
    assert ends(log(store, run_id)) == ["failed"]
    assert failure(store, run_id) == "out_of_memory"
    assert ends(log(store, other)) == ["completed"]
    assert budget.used == 0


# What is new


@virtually
async def test_new_runs_are_admitted_while_there_is_room():
    store, budget = SharedStore(), MemoryBudget(int(10 * RUN_SIZE / ADMITTED))
    a = replica(store, "a", model=Hung(), memory_budget=budget)
    last = [await begin(a, f"Q{n}") for n in range(9)][-1]
    with pytest.raises(Overloaded):
        await begin(a)
    assert a.runs.active_count == 9
    await a.run(a.runs.cancel(last))
    await begin(a, "again")
    with pytest.raises(Overloaded):
        await a.run(a.runs.send_message(last, MessageQueued("x" * 10 * RUN_SIZE, "m-1")))


@virtually
async def test_a_subject_has_half_of_it():
    store, budget = SharedStore(), MemoryBudget(int(20 * RUN_SIZE / ADMITTED))
    a = replica(store, "a", model=Hung(), memory_budget=budget)
    for n in range(9):
        await begin(a, f"Q{n}", subject="key:greedy")
    with pytest.raises(SubjectOverloaded):
        await begin(a, subject="key:greedy")
    assert a.runs.active_count == 9
    await begin(a, "Q", subject="key:other")


@virtually
async def test_a_run_that_was_refused_by_the_store_holds_nothing():
    store, budget = SharedStore(), MemoryBudget(10 * MI)
    a = replica(
        store, "a", model=Hung(), memory_budget=budget, trouble=when("a", "nothing", act=int)
    )
    store.is_full = True
    with pytest.raises(Exception, match="full"):
        await begin(a)
    assert budget.used == 0
