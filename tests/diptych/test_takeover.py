"""A run outlives its process: what the next owner does, told as stories of processes and a store.

Time is virtual; `replica(…)` is a process, with a model, tools and agents of its own.
"""

import asyncio
import functools

import pytest
from support.doubles import FunctionTools, facts, tool, types
from support.history import problems
from support.replicas import Replica, ask, replica, told, when
from support.shared_store import LEASE_SECONDS, SharedStore
from support.virtual_time import run_virtually

from diptych.errors import LostRun, StoreError
from diptych.events import Origin
from diptych.messages import Message
from diptych.offering import Charter
from diptych.ports import Delta, Notice, Reply
from diptych.record import TERMINAL, Record
from diptych.turns import MOST_OWNERS

TAKEN_UP = LEASE_SECONDS + 5  # seconds within which a run whose owner has died goes on
CALL = '{"tool": "charge"}'
SLOWLY = {"content": "one two three four five six", "chunk_ms": 1000}


def virtually(story):
    async def bounded(*arguments, **named):
        async with asyncio.timeout(3_600):
            await story(*arguments, **named)

    @functools.wraps(story)
    def test(*arguments, **named):
        run_virtually(bounded(*arguments, **named))

    return test


def now():
    return asyncio.get_running_loop().time()


class Counted:
    """A tool `charge`, the same for all processes, that counts and takes three seconds."""

    def __init__(self, **marks):
        self.count = 0
        self.tools = FunctionTools({"charge": self._charge}, (tool("charge", **marks),))

    async def _charge(self, **_):
        self.count += 1
        await asyncio.sleep(3)
        return "done"


class Hung:
    """A model that never answers."""

    async def complete(self, messages, index):
        await asyncio.Event().wait()

    async def stream(self, messages, index):
        yield Delta("begun ")
        await asyncio.Event().wait()


async def begin(at: Replica, text="hi", session_id=None, **rest):
    return (await at.run(at.runs.start(ask(text, session_id, **rest)))).run_id


def log(store, run_id):
    return store.runs[run_id].records


def records(items):
    return [item for item in items if isinstance(item, Record)]


def text_of(items):
    """The answer as a reader has it: what follows the last reset."""
    text = ""
    for item in records(items):
        if item.event_type == "answer_reset":
            text = ""
        elif item.event_type == "text":
            text += item.content
    return text


def content(items, event_type):
    return [item.content for item in records(items) if item.event_type == event_type]


def ends(items):
    return [item.event_type for item in records(items) if item.event_type in TERMINAL]


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
    assert len(b.model.heard) == 2


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
    assert "unknown" in b.model.heard[0][-1].content


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
    errands = []

    async def look(errand, progress):
        errands.append(errand)
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
    assert len(errands) == 1


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
    assert [(m.role, m.content) for m in b.model.heard[0][1:]] == said
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
    assert [m.content for m in b.model.heard[-1] if m.content.startswith("Q")] == said


@virtually
async def test_nothing_is_asked_of_a_run_that_is_out_of_time_when_it_is_taken_up():
    store, charter = SharedStore(), Charter(seconds=8)
    a, b = replica(store, "a", model=Hung(), charter=charter), replica(store, "b", charter=charter)
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    heard = await told(b, run_id)
    assert heard[-1].metadata["code"] == "deadline_exceeded"
    assert b.model.heard == []
    assert now() - 1_000 < 8 + TAKEN_UP


@pytest.mark.parametrize("of", ["manifest", "caller"])
@virtually
async def test_the_time_that_a_run_has_counts_over_all_its_owners(of):
    store = SharedStore()
    charter = Charter(seconds=20 if of == "manifest" else None)
    origin = Origin(seconds=20 if of == "caller" else None)
    a, b = (replica(store, n, model=Hung(), charter=charter) for n in "ab")
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
    for n in range(1, MOST_OWNERS + 2):
        owner.kill()
        owner = another(n)
        await asyncio.sleep(TAKEN_UP)
    assert len(calls) == (MOST_OWNERS + 1 if during == "tool" else 0)
    (*_, last) = log(store, run_id)
    assert (last.event_type, last.metadata["code"]) == ("failed", "too_many_owners")
    assert sum(r.event_type == "owner_changed" for r in log(store, run_id)) == MOST_OWNERS


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
    owners = [e["actor"] for e in store.history if e["kind"] == "write_accepted"]
    assert set(owners[: owners.index("b")]) == {"a"}
    assert set(owners[owners.index("b") :]) == {"b"}


# Ends that are asked for elsewhere


@virtually
async def test_a_run_is_cancelled_from_another_process_at_once():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    asked = now()
    entry = await b.run(b.runs.cancel(run_id, "enough"))
    assert entry.status == "aborted"
    assert now() - asked < 1
    assert facts(log(store, run_id))[-2:] == ["tool_error", "aborted"]


@pytest.mark.parametrize("opener", ["a", "b"])
@virtually
async def test_a_run_that_waits_is_cancelled_from_another_process_at_once(opener):
    store = SharedStore()
    a, b = (replica(store, n, model=Hung()) for n in "ab")
    await begin(a, "Q0", "s")
    run_id = await begin({"a": a, "b": b}[opener], "Q1", "s")
    await asyncio.sleep(1)
    asked = now()
    assert (await b.run(b.runs.cancel(run_id))).status == "aborted"
    assert now() - asked < 1
    assert types(log(store, run_id)) == ["user_message", "aborted"]
    assert store.sessions["s"].queue != [run_id]


@virtually
async def test_a_run_without_an_owner_is_cancelled_by_the_next_one():
    store, charge = SharedStore(), Counted(read_only=True)
    a, b = (replica(store, n, CALL, tools=charge.tools) for n in "ab")
    run_id = await begin(a, session_id="s")
    waits = await begin(a, session_id="s")
    await asyncio.sleep(1)
    a.kill()
    ended = await asyncio.gather(*(b.run(b.runs.cancel(each)) for each in (run_id, waits)))
    assert [entry.status for entry in ended] == ["aborted", "aborted"]
    assert charge.count == 1  # what is to be ended begins nothing
    assert store.sessions["s"].queue == []


@virtually
async def test_an_owner_that_does_not_hear_of_a_cancel_is_asked_again():
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.loses_messages = lambda: now() < 1_002
    assert (await b.run(b.runs.cancel(run_id))).status == "aborted"


@virtually
async def test_a_cancel_at_the_last_moment_leaves_what_was_said():
    store = SharedStore()
    a, b = replica(store, "a", "{}", "A1"), replica(store, "b")

    def cancel(call):
        if call.name == "append" and not call.is_done and "completed" in call.about:
            cancels.append(asyncio.create_task(b.run(b.runs.cancel(run_ids[0]))))
            return 0.5
        return 1.0 if call.name == "conclude" and not call.is_done else None

    cancels, run_ids = [], []
    a.trouble = cancel
    run_ids.append(await begin(a, "Q1", "s"))
    assert ends(await told(b, run_ids[0])) == ["completed"]
    await asyncio.gather(*cancels)
    await asyncio.sleep(5)
    assert store.conversation("s") == (Message("user", "Q1"), Message("assistant", "A1"))


@virtually
async def test_a_cancel_does_not_wait_for_ever_for_a_store_that_is_away():
    store = SharedStore()
    a = replica(store, "a", model=Hung())
    run_id = await begin(a)
    await asyncio.sleep(1)
    store.go_away(20)
    with pytest.raises(StoreError):
        await a.run(a.runs.cancel(run_id))
    assert now() - 1_001 < 18
    assert ends(await told(a, run_id)) == ["aborted"]


@virtually
async def test_a_run_that_waits_is_out_of_time_where_another_process_owns_the_session():
    store = SharedStore()
    a, b = (replica(store, n, model=Hung()) for n in "ab")
    await begin(a, "Q0", "s")
    run_id = await begin(b, "Q1", "s", origin=Origin(seconds=5))
    heard = await told(b, run_id)
    assert types(heard) == ["user_message", "failed"]
    assert now() - 1_000 == pytest.approx(5, abs=0.5)


# A session's turns


@virtually
async def test_questions_asked_at_once_in_a_new_session_see_each_other():
    store = SharedStore()
    a = replica(store, "a", "{}", "A")
    b = replica(store, "b", "{}", "A")
    for at, other in ((a, a), (a, b)):
        name = f"s-{other.name}"
        pair = await asyncio.gather(begin(at, "Q1", name), begin(other, "Q2", name))
        for run_id in pair:
            await told(b, run_id)
        await asyncio.sleep(1)
        later = [m for m in (*a.model.heard, *b.model.heard) if m[-1].content == "Q2"][-1]
        earlier = [m for m in (*a.model.heard, *b.model.heard) if m[-1].content == "Q1"][-1]
        seen = {len([m for m in heard if m.role == "user"]) for heard in (earlier, later)}
        assert seen == {1, 2}


@virtually
async def test_a_question_that_comes_as_its_session_is_let_go_is_answered():
    for delay in (0.0, 0.001, 0.01, 0.02, 0.05):
        store = SharedStore()
        a = replica(store, "a", "{}", "A")
        a.trouble = lambda call: 0.01 if call.name in {"conclude", "open", "knows"} else None
        first = await begin(a, "Q1", "s")
        await told(a, first)
        await asyncio.sleep(delay)
        second = await begin(a, "Q2", "s", origin=Origin(seconds=3))
        assert ends(await told(a, second)) == ["completed"]
        await asyncio.sleep(5)
        assert ends(log(store, second)) == ["completed"]
        assert problems(store.history, TAKEN_UP) == []
        assert a.runs.live_count == 0


@virtually
async def test_a_request_that_is_sent_again_is_no_second_run():
    from diptych.ports import Once  # noqa: PLC0415

    store = SharedStore()
    a, b = replica(store, "a", "{}", "A"), replica(store, "b", "{}", "A")
    runs = {await begin(at, "Q", "s", once=Once("k", "d")) for at in (a, a, b)}
    assert len(runs) == 1
    (run_id,) = runs
    assert ends(await told(b, run_id)) == ["completed"]
    assert len(store.runs) == 1
    assert b.runs.live_count == 0


# A store that loses things


@virtually
async def test_a_reader_who_has_seen_more_than_the_store_still_has_is_told():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, "{}", "Sorry.", tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    live = asyncio.create_task(told(b, run_id))
    await asyncio.sleep(1)
    assert types(log(store, run_id))[-1] == "tool_call"
    a.kill()
    store.lose_tail(run_id, 1)
    (reset, *rest) = await told(b, run_id, after=4)
    assert reset == Notice("reset", {"epoch": store.epoch, "last_seq": 3})
    assert records(rest) == log(store, run_id)[3:]
    assert Notice("reset", {"epoch": store.epoch, "last_seq": 3}) in await live
    unknown = [r for r in records(rest) if r.event_type == "tool_error"]
    assert [r.metadata["error"] for r in unknown] == ["unknown"]
    assert charge.count == 1
    assert rest[0].metadata == {"lost_tail": True}


@virtually
async def test_an_owner_puts_back_what_the_store_has_lost():
    store, charge = SharedStore(), Counted()
    a = replica(store, "a", CALL, "{}", "Done.", tools=charge.tools)
    b = replica(store, "b")
    run_id = await begin(a)
    reader = asyncio.create_task(told(a, run_id))
    await asyncio.sleep(1)
    store.lose_tail(run_id, 2)
    heard = await reader
    assert records(heard) == log(store, run_id) == records(await told(b, run_id))
    assert ends(heard) == ["completed"]
    assert charge.count == 1


@virtually
async def test_an_end_that_the_store_has_lost_is_put_back():
    store = SharedStore()
    a = replica(store, "a", "{}", "Done.")

    def lose():
        if store.server == 1:
            store.lose_tail(run_id, 1)

    a.trouble = when("conclude", act=lose, is_done=False)
    run_id = await begin(a, "Q", "s")
    reader = asyncio.create_task(told(a, run_id))
    heard = await reader
    await asyncio.sleep(1)
    assert records(heard) == log(store, run_id)
    assert store.conversation("s")[-1].content == "Done."


@virtually
async def test_a_store_that_was_emptied_ends_its_runs_and_says_so(caplog):
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b")
    run_id = await begin(a)
    reader = asyncio.create_task(told(a, run_id))
    elsewhere = asyncio.create_task(told(b, run_id))
    await asyncio.sleep(1)
    store.flush()
    emptied = now()
    heard = await reader
    assert heard[-1].metadata["code"] == "store_lost"
    assert now() - emptied < 10
    with pytest.raises(LostRun):
        await elsewhere
    assert a.runs.live_count == 0
    assert await begin(a) in store.runs


@virtually
async def test_a_full_store_ends_a_run_on_record():
    store, charge = SharedStore(), Counted()
    a = replica(store, "a", CALL, "{}", "Done.", tools=charge.tools)
    run_id = await begin(a)
    await asyncio.sleep(1)
    store.is_full = True
    heard = await told(a, run_id)
    assert heard[-1].metadata["code"] == "store_full"
    assert records(heard) == log(store, run_id)
    assert store.sessions[heard[-1].session_id].queue == []


@virtually
async def test_a_store_that_is_away_for_a_while_holds_a_run_up_and_nothing_more():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, "{}", SLOWLY, tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    readers = [asyncio.create_task(told(at, run_id)) for at in (a, b)]
    await asyncio.sleep(1)
    store.go_away(5)
    heard = await readers[0]
    assert records(heard) == log(store, run_id)
    assert text_of(heard) == SLOWLY["content"]
    assert "owner_changed" not in types(heard)
    await asyncio.wait([readers[1]])


# A log of a newer version


def _of_a_newer_version(store, run_id, what):
    run = store.runs[run_id]
    seq = len(run.records) + 1
    about = {"unknown event": ("telepathy", {}), "unknown field": ("owner_changed", {"mood": 1})}
    event_type, metadata = about[what]
    if event_type == "owner_changed":
        metadata = {"lost_tail": False, **metadata}
    run.records.append(Record(run_id, run.session_id, seq, event_type, 1.0, None, metadata))


@pytest.mark.parametrize("what", ["unknown event", "unknown field"])
@virtually
async def test_a_log_of_a_newer_version_is_left_alone(what, caplog):
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b", "{}", "Hello.")
    run_id = await begin(a, "Q", "s")
    await asyncio.sleep(1)
    a.kill()
    _of_a_newer_version(store, run_id, what)
    before = list(log(store, run_id))
    await asyncio.sleep(60)
    assert log(store, run_id) == before
    assert caplog.text.count("a newer one must") == 1
    assert ends(await told(b, await begin(b))) == ["completed"]
    waits = await begin(b, "Q2", "s")
    await asyncio.sleep(5)
    assert types(log(store, waits)) == ["user_message"]
    assert store.sessions["s"].holder is None


@virtually
async def test_a_process_that_can_read_it_takes_it_up(caplog):
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b", "{}", "Hello.")
    run_id = await begin(a, "Q", "s")
    await asyncio.sleep(1)
    a.kill()
    _of_a_newer_version(store, run_id, "unknown event")
    await asyncio.sleep(20)
    del log(store, run_id)[-1]  # for this process the log is as it should be
    newer = replica(store, "newer", "{}", "Hello.")
    assert ends(await told(newer, run_id)) == ["completed"]
    assert b.model.heard == []


@virtually
async def test_reasons_for_a_reply_are_kept_over_owners():
    """A model call that is on record is not made again, whatever its number."""

    class Numbered:
        def __init__(self):
            self.asked = []

        async def complete(self, messages, index):
            self.asked.append(index)
            return Reply(CALL if index == 0 else "{}")

        async def stream(self, messages, index):
            self.asked.append(index)
            yield Delta("x", finish_reason="stop")

    store, look = SharedStore(), Counted(read_only=True)
    models = [Numbered(), Numbered()]
    a, b = (
        replica(store, n, model=model, tools=look.tools)
        for n, model in zip("ab", models, strict=True)
    )
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    await told(b, run_id)
    assert [model.asked for model in models] == [[0], [1, 2]]


@virtually
async def test_a_reader_who_knows_more_than_a_stale_owner_loses_nothing():
    store, taken_up = SharedStore(), asyncio.Event()
    very_slow = {"content": "a b c d e f g h i j k l", "chunk_ms": 4000}
    a = replica(store, "a", "{}", very_slow)
    b = replica(store, "b", "{}", very_slow, trouble=when("append", "text", act=taken_up.set))
    run_id = await begin(a)
    await asyncio.sleep(5)
    a.trouble = lambda call: 5.0 if call.name in {"renew", "append", "claim"} else None
    a.freeze(40)
    await taken_up.wait()
    await asyncio.sleep(40 - (now() - 1_005))
    seen = len(log(store, run_id))
    assert a.runs.live_count == 1  # it does not know yet
    heard = await told(a, run_id, seen)
    assert records(heard) == log(store, run_id)[seen:]
    assert ends(heard) == ["completed"]
    assert "[reset]" not in types(heard)
    assert b.runs.live_count == 0


@virtually
async def test_a_reader_of_a_run_that_the_store_has_lost_but_its_question_begins_anew():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, "{}", SLOWLY, tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(5)
    a.kill()
    seen = len(log(store, run_id))
    store.lose_tail(run_id, seen - 1)
    while len(log(store, run_id)) <= seen:  # noqa: ASYNC110 - the reader comes late
        await asyncio.sleep(0.1)
    (reset, *rest) = await told(b, run_id, seen)
    assert reset == Notice("reset", {"epoch": store.epoch, "last_seq": 1})
    assert records(rest) == log(store, run_id)[1:]
    assert records(rest)[0].metadata == {"lost_tail": True}
