"""A run outlives its process: what the next owner does, told as stories of processes and a store.

Time is virtual; `replica(…)` is a process, with a model, tools and agents of its own.
"""

import asyncio

import pytest
from support.doubles import FunctionTools, facts, tool, types
from support.history import problems
from support.replicas import replica, told
from support.shared_store import LEASE_SECONDS, SharedStore
from support.stories import (
    CALL,
    SLOWLY,
    TAKEN_UP,
    Counted,
    Hung,
    begin,
    content,
    ends,
    log,
    now,
    records,
    text_of,
    virtually,
)

from diptych.core.codec import Record
from diptych.core.events import Origin
from diptych.policy.rules import Policy, Rule
from diptych.runs.approvals import DecisionRequest
from diptych.runs.definition import AgentDefinition
from diptych.runs.executor import MAX_OWNER_CHANGES
from diptych.runs.turn_admission import MAX_DEATHS

# What the next owner does


@virtually
async def test_a_model_that_was_being_asked_is_asked_again():
    store = SharedStore()
    slow = {"content": "{}", "delay_ms": 5000}
    a, b = replica(store, "a", slow, "Hello."), replica(store, "b", slow, "Hello.")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    killed = now()
    heard = await told(b, run_id)
    assert types(heard) == [
        *("user_message", "offered", "owner_changed", "model_reply"),
        *("text", "model_reply", "agent_response", "completed"),
    ]
    assert now() - killed < TAKEN_UP + 5
    assert len(b.model.requests) == 2


@virtually
async def test_a_call_that_may_have_been_made_is_not_made_again():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, "{}", "Sorry.", tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    assert facts(heard) == [
        *("user_message", "tool_call", "owner_changed", "tool_error", "agent_response")
    ]
    assert charge.count == 1
    (error,) = [r for r in records(heard) if r.event_type == "tool_error"]
    assert error.metadata["error"] == "unknown"
    assert "unknown" in b.model.requests[0][-1].content


@virtually
async def test_an_answer_that_comes_out_the_same_goes_on_as_if_nothing_had_been():
    store = SharedStore()
    a, b = replica(store, "a", "{}", SLOWLY), replica(store, "b", "{}", SLOWLY)
    run_id = await begin(a)
    elsewhere = asyncio.create_task(told(b, run_id))
    here = asyncio.create_task(told(a, run_id))
    await asyncio.sleep(3.5)
    a.kill()
    before = await here
    after = await told(b, run_id, records(before)[-1].seq)
    assert "answer_reset" not in types(await elsewhere)
    assert text_of(before) == "one two three "
    assert text_of(await elsewhere) == "one two three four five six"
    assert records(before) + records(after) == records(await elsewhere) == log(store, run_id)
    assert content(after, "agent_response") == ["one two three four five six"]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param("uno dos tres", id="other words"),
        pytest.param("one two and a half, and more of it than before", id="the same beginning"),
        pytest.param("one two", id="shorter"),
        pytest.param("one", id="one word"),
    ],
)
@virtually
async def test_an_answer_that_comes_out_differently_is_started_over_once(second):
    store = SharedStore()
    a = replica(store, "a", "{}", SLOWLY)
    b = replica(store, "b", "{}", {"content": second, "chunk_ms": 500})
    run_id = await begin(a)
    readers = [asyncio.create_task(told(at, run_id)) for at in (a, b)]
    await asyncio.sleep(3.5)
    a.kill()
    before = await readers[0]
    first = next(r for r in before if isinstance(r, Record) and r.event_type == "text")
    here = before + await told(b, run_id, records(before)[-1].seq)
    there = await readers[1]
    for heard in (here, there):
        assert records(heard) == log(store, run_id)
        (reset,) = [r for r in records(heard) if r.event_type == "answer_reset"]
        assert reset.metadata == {"from_seq": first.seq, "attempt": 2}
        assert text_of(heard) == content(heard, "agent_response")[0] == second


@pytest.mark.parametrize("of", ["manifest", "caller"])
@virtually
async def test_the_time_that_a_run_has_counts_over_all_its_owners(of):
    store = SharedStore()
    definition = AgentDefinition(deadline=20 if of == "manifest" else None)
    origin = Origin(seconds=20 if of == "caller" else None)
    a, b = (replica(store, n, model=Hung(), definition=definition) for n in "ab")
    run_id = await begin(a, origin=origin)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    assert heard[-1].metadata["code"] == "deadline_exceeded"
    assert now() - 1_000 == pytest.approx(20, abs=1)


@pytest.mark.parametrize("during", ["model", "tool"])
@virtually
async def test_a_run_that_kills_its_owners_is_given_up(during):
    async def forever():
        calls.append(1)
        await asyncio.Event().wait()

    def another(n):
        offered = FunctionTools({"look": forever}, (tool("look", read_only=True),))
        model = Hung() if during == "model" else None
        return replica(store, str(n), '{"tool": "look"}', model=model, tools=offered)

    store, calls = SharedStore(), []
    run_id = await begin(owner := another(0))
    await asyncio.sleep(1)
    for n in range(1, MAX_DEATHS + 1):
        owner.kill()
        owner = another(n)
        await asyncio.sleep(TAKEN_UP)
    assert len(calls) == (MAX_DEATHS if during == "tool" else 0)
    (*_, last) = log(store, run_id)
    assert (last.event_type, last.metadata["code"]) == ("failed", "too_many_owners")
    assert sum(r.event_type == "owner_changed" for r in log(store, run_id)) == MAX_DEATHS - 1


@virtually
async def test_a_run_that_has_had_ten_owners_at_once_is_given_up_however_they_went():
    store = SharedStore()
    run_id = await begin(owner := replica(store, "0", model=Hung()))
    for n in range(1, MAX_OWNER_CHANGES + 2):
        await asyncio.sleep(1)
        owner.kill()
        owner = replica(store, str(n), model=Hung())
        store.runs[run_id].deaths = -1  # as pods of earlier versions leave it: uncounted
        await asyncio.sleep(TAKEN_UP)
    (*_, last) = log(store, run_id)
    assert (last.event_type, last.metadata["code"]) == ("failed", "too_many_owners")
    assert sum(r.event_type == "owner_changed" for r in log(store, run_id)) == MAX_OWNER_CHANGES + 1


@virtually
async def test_a_call_may_wait_for_a_decision_over_any_number_of_hand_overs():
    store, pay = SharedStore(), Counted()
    ask = Policy((Rule("tool", "*", "ask", expires=10.0**6),))

    def pod(n):
        return replica(store, str(n), CALL, "{}", "Done.", tools=pay.tools, policy=ask)

    run_id = await begin(owner := pod(0))
    for n in range(1, MAX_OWNER_CHANGES + 5):
        await asyncio.sleep(120)
        leaving, owner = owner, pod(n)
        await leaving.run(leaving.runs.close(0.1))
    await asyncio.sleep(10)
    await owner.run(owner.runs.answer(run_id, "call_1_1", DecisionRequest("approve")))
    assert ends(await told(owner, run_id)) == ["completed"]
    assert pay.count == 1


# Owners that are not dead


@virtually
async def test_what_a_stale_owner_writes_is_refused_and_its_readers_go_on_elsewhere():
    store, charge = SharedStore(), Counted()
    script = (CALL, "{}", {"content": "all is well", "chunk_ms": 500})
    a, b = (replica(store, n, *script, tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    readers = [asyncio.create_task(told(at, run_id)) for at in (a, b)]
    await asyncio.sleep(1)
    a.freeze(30)
    for heard in await asyncio.gather(*readers):
        assert records(heard) == log(store, run_id)
        assert ends(heard) == ["completed"]
    assert problems(store.history, TAKEN_UP) == []
    assert {e["actor"] for e in store.history if e["kind"] == "claimed"} == {"a", "b"}
    assert charge.count == 1


@pytest.mark.parametrize("is_emptied", [False, True])
@virtually
async def test_who_lost_a_run_leaves_its_child_to_the_next_owner_if_there_can_be_one(is_emptied):
    left = []

    async def look(request, progress):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            left.append(request.leaves_task())
            raise

    store = SharedStore()
    call = '{"agent": "peer", "task": "look"}'
    a, b = (replica(store, n, call, "{}", "Done.", agents={"peer": look}) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    if is_emptied:
        store.flush()
        await asyncio.sleep(10)
    else:  # it writes nothing meanwhile, and learns it when it renews its lease
        a.freeze(15)
        await told(b, run_id)
        await asyncio.sleep(20)
    assert left == [not is_emptied]


@virtually
async def test_a_leaving_process_hands_over_what_it_has(caplog):
    store = SharedStore()
    a, b = (replica(store, n, {"content": "{}", "delay_ms": 3000}, "Hello.") for n in "ab")
    runs = [await begin(a, f"Q{n}", "s") for n in range(2)]
    here = [asyncio.create_task(told(a, run_id)) for run_id in runs]
    there = [asyncio.create_task(told(b, run_id)) for run_id in runs]
    await asyncio.sleep(1)
    left = now()
    await a.run(a.runs.close())
    assert now() - left < 1
    for reader in here:
        assert types(await reader)[-1] == "[handed_over]"
    for run_id, reader in zip(runs, there, strict=True):
        heard = await reader
        assert records(heard) == log(store, run_id)
        assert "[handed_over]" not in types(heard)
        assert ends(heard) == ["completed"]
    assert now() - left < LEASE_SECONDS  # nobody had to wait for the lease to run out


@virtually
async def test_a_process_can_leave_while_the_store_is_away():
    store = SharedStore()
    a = replica(store, "a", {"content": "{}", "delay_ms": 500}, "Hello.")
    await begin(a)
    store.go_away(600)
    await asyncio.sleep(2)
    left = now()
    await a.run(a.runs.close())
    assert now() - left < 10
