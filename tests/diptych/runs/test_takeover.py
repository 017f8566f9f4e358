"""A run outlives its process: what the next owner does, told as stories of processes and a store.

Time is virtual; `replica(…)` is a process, with a model, tools and agents of its own.
"""

import asyncio

import pytest
from support.doubles import FunctionTools, facts, tool, types
from support.history import problems
from support.replicas import replica, told, when
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
from diptych.core.messages import Message
from diptych.policy.rule_groups import Rule
from diptych.policy.rules import Policy
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


@pytest.mark.parametrize("mark", ["read_only", "idempotent"])
@virtually
async def test_a_call_that_does_no_harm_twice_is_made_again(mark):
    store, look = SharedStore(), Counted(**{mark: True})
    a, b = (replica(store, n, CALL, "{}", "Found.", tools=look.tools) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    assert facts(heard) == [
        *("user_message", "tool_call", "owner_changed", "tool_result", "agent_response")
    ]
    assert look.count == 2


@virtually
async def test_a_call_that_was_recorded_and_not_sent_counts_as_one_that_was_sent():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, "{}", "Sorry.", tools=charge.tools) for n in "ab")
    a.trouble = when("append", "tool_call", act=a.kill)
    run_id = await begin(a)
    heard = await told(b, run_id)
    assert charge.count == 0
    assert [r.metadata.get("error") for r in records(heard) if r.event_type == "tool_error"] == [
        "unknown"
    ]
    assert ends(heard) == ["completed"]


@virtually
async def test_a_call_that_was_not_recorded_is_made_by_the_next_owner():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, "{}", "Done.", tools=charge.tools) for n in "ab")
    a.trouble = when("append", "tool_call", act=a.kill, is_done=False)
    heard = await told(b, await begin(a))
    assert charge.count == 1
    assert facts(heard)[-2:] == ["tool_result", "agent_response"]


@virtually
async def test_of_several_calls_each_goes_its_own_way():
    store, charge, look = SharedStore(), Counted(), Counted(read_only=True)
    functions = {"charge": charge._charge, "look": look._charge}
    offered = FunctionTools(functions, (tool("charge"), tool("look", read_only=True)))
    calls = (
        '[{"tool": "charge", "id": "a"}, {"tool": "look", "id": "b"},'
        ' {"tool": "look", "after": ["a"]}, {"tool": "look", "after": ["b"]}]'
    )
    a, b = (replica(store, n, calls, "{}", "x", tools=offered) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    results = {
        r.metadata["call_id"]: r.metadata.get("error", "")
        for r in records(heard)
        if r.event_type in {"tool_result", "tool_error"}
    }
    assert results == {"call_1_1": "unknown", "call_1_2": "", "call_1_3": "skipped", "call_1_4": ""}
    assert (charge.count, look.count) == (1, 3)
    assert ends(heard) == ["completed"]


@virtually
async def test_a_delegation_in_flight_is_not_sent_again():
    delegations = []

    async def look(request, progress):
        delegations.append(request)
        await asyncio.sleep(3)
        return "found"

    store = SharedStore()
    call = '{"agent": "peer", "task": "look"}'
    a, b = (replica(store, n, call, "{}", "Sorry.", agents={"peer": look}) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    assert facts(heard)[1:] == [
        *("delegation_request", "owner_changed", "delegation_error", "agent_response")
    ]
    assert len(delegations) == 1


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


@virtually
async def test_a_longer_answer_goes_on_where_the_other_was_cut():
    store = SharedStore()
    longer = {"content": SLOWLY["content"] + " seven"}
    a, b = replica(store, "a", "{}", SLOWLY), replica(store, "b", "{}", longer)
    run_id = await begin(a)
    await asyncio.sleep(3.5)
    a.kill()
    heard = await told(b, run_id)
    assert "answer_reset" not in types(heard)
    assert text_of(heard) == longer["content"]


@virtually
async def test_an_answer_may_be_started_over_by_each_owner():
    store = SharedStore()
    others = [
        replica(store, name, "{}", {"content": f"{name} says this", "chunk_ms": 1000})
        for name in "abc"
    ]
    run_id = await begin(others[0])
    last = asyncio.create_task(told(others[2], run_id))
    for dying in others[:2]:
        while dying.name not in text_of(log(store, run_id)):
            others[1 if dying is others[0] else 2].freeze(0.1)
            await asyncio.sleep(0.1)
            if dying is others[1] and text_of(log(store, run_id)).startswith("c"):
                break  # the third was quicker
        dying.kill()
    heard = await last
    attempts = [r.metadata["attempt"] for r in records(heard) if r.event_type == "answer_reset"]
    assert attempts == list(range(2, 2 + len(attempts)))
    assert text_of(heard) == content(heard, "agent_response")[0]
    assert records(heard) == log(store, run_id)


@virtually
async def test_a_run_that_ended_is_not_run_again_and_is_said_once():
    store = SharedStore()
    a, b = replica(store, "a", "{}", "A1"), replica(store, "b", "{}", "A2")
    a.trouble = when("append", "completed", act=a.kill)
    first = await begin(a, "Q1", "s")
    second = await begin(b, "Q2", "s")
    assert ends(await told(b, second)) == ["completed"]
    assert ends(log(store, first)) == ["completed"]
    said = [("user", "Q1"), ("assistant", "A1"), ("user", "Q2")]
    assert [(m.role, m.content) for m in b.model.requests[0][1:]] == said
    assert store.conversation("s") == (
        *(Message(role, text) for role, text in said),
        Message("assistant", "A2"),
    )


@virtually
async def test_what_waits_goes_on_after_its_owner_s_death_in_its_order():
    store = SharedStore()
    a, b = (replica(store, n, {"content": "{}", "delay_ms": 2000}, "x") for n in "ab")
    runs = [await begin(at, f"Q{n}", "s") for n, at in enumerate((a, b, a, b))]
    await asyncio.sleep(1)
    a.kill()
    for run_id in runs:
        assert ends(await told(b, run_id)) == ["completed"]
    begun = [next(r for r in log(store, r) if r.event_type == "offered") for r in runs]
    finished = [log(store, run_id)[-1] for run_id in runs]
    assert all(f.timestamp <= b.timestamp for f, b in zip(finished, begun[1:], strict=False))
    said = [m.content for m in store.conversation("s") if m.role == "user"]
    assert said == ["Q0", "Q1", "Q2", "Q3"]
    assert [m.content[:2] for m in b.model.requests[-1] if m.content.startswith("Q")] == said


@virtually
async def test_nothing_is_asked_of_a_run_that_is_out_of_time_when_it_is_taken_up():
    store, definition = SharedStore(), AgentDefinition(deadline=8)
    a, b = (
        replica(store, "a", model=Hung(), definition=definition),
        replica(store, "b", definition=definition),
    )
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    assert heard[-1].metadata["code"] == "deadline_exceeded"
    assert b.model.requests == []
    assert now() - 1_000 < 8 + TAKEN_UP


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
    await owner.run(owner.runs.decide(run_id, "call_1_1", DecisionRequest("approve")))
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
async def test_a_process_that_wakes_up_alone_goes_on_with_its_runs():
    store, charge = SharedStore(), Counted()
    a = replica(store, "a", CALL, "{}", "Done.", tools=charge.tools)
    run_id = await begin(a, session_id="s")
    waits = await begin(a, session_id="s")
    await asyncio.sleep(1)
    a.trouble = lambda call: 0.5 if call.name == "renew" else None  # it claims before it renews
    a.freeze(30)
    for each in (run_id, waits):
        heard = await told(a, each)
        assert ends(heard) == ["completed"]
        assert records(heard) == log(store, each)
    assert charge.count == 2


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
async def test_a_leaving_process_says_so_to_those_who_follow_what_others_own():
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b", model=Hung())
    reader = asyncio.create_task(told(b, await begin(a)))
    await asyncio.sleep(1)
    await b.run(b.runs.close())
    assert types(await reader)[-1] == "[handed_over]"


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


@virtually
async def test_a_run_that_ends_while_its_process_leaves_is_the_last_there():
    store = SharedStore()
    slow = {"content": "{}", "delay_ms": 3000}
    a, b = replica(store, "a", slow, "x"), replica(store, "b", slow, "x")
    runs = [await begin(a, f"Q{n}", "s") for n in range(3)]
    a.trouble = when("append", "completed", act=lambda: a.spawn(a.runs.close()))
    for run_id in runs:
        assert ends(await told(b, run_id)) == ["completed"]
    leases = [e["actor"] for e in store.history if e["kind"] == "write_accepted"]
    assert set(leases[: leases.index("b")]) == {"a"}
    assert set(leases[leases.index("b") :]) == {"b"}
