"""A message to a run that is there: it joins as soon as it can, once, and is never lost (§6)."""

import asyncio

import pytest
from support.doubles import FunctionTools, facts, house, types
from support.feeding import feed, made, returned, started
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, records, virtually
from support.virtual_time import run_virtually

from diptych.core.errors import IdempotencyMismatch, RunEnded, RunNotFound, TooManyMessages
from diptych.core.events import (
    Aborted,
    Called,
    Completed,
    MessageQueued,
    Replied,
    Streamed,
)
from diptych.core.messages import Message
from diptych.core.reducer import closing_events
from diptych.core.run_settings import RunSettings
from diptych.core.state import MAX_MESSAGES_PER_RUN, Phase, conversation
from diptych.runs.definition import AgentDefinition
from diptych.runs.request import RunRequest

MORE = MessageQueued("and in French", "m-1")
ECHO = '{"tool": "echo", "arguments": {"text": "a"}}'
TWO = '[{"tool": "a"}, {"tool": "b"}]'


def event_types(store, run_id):
    return [r.event_type for r in log(store, run_id)]


def said(run):
    return [m.content for m in conversation(run)]


# What the loop makes of it


def test_calls_that_the_model_asks_for_without_having_heard_it_are_not_made():
    run, commands = feed(started("echo")[0], MORE)
    assert commands == ()
    run, commands = feed(run, Replied(ECHO))
    assert made(commands) == []
    (ask,) = commands
    told = ask.request.messages[-1]
    assert "skipped: superseded by a new message" in told.content
    assert MORE.message in told.content
    assert run.step == 1


def test_it_joins_after_the_calls_now_running():
    settings = RunSettings(max_parallel_calls=1)
    run, commands = feed(started("a", "b", settings=settings)[0], Replied(TWO))
    (call,) = made(commands)
    run, commands = feed(run, Called(call, 1), MORE)
    assert commands == ()
    assert [(r.call_id, r.error) for r in run.results] == [("call_1_2", "skipped")]
    run, (ask,) = feed(run, returned("call_1_1", "AAA"))
    told = ask.request.messages[-1]
    assert "AAA" in told.content
    assert "superseded" in told.content
    assert MORE.message in told.content


def test_a_reply_without_an_action_does_not_start_the_answer_to_an_older_question():
    run, (ask,) = feed(started()[0], MORE, Replied("{}"))
    assert run.phase is Phase.ACT
    assert ask.purpose == "actions"
    assert MORE.message in ask.request.messages[-1].content


def test_while_the_answer_is_told_it_waits_and_then_begins_the_next_turn():
    run, commands = feed(started()[0], Replied("{}"), Streamed("Hello."), MORE)
    assert commands == ()
    run, (ask,) = feed(run, Replied(""))
    assert run.phase is Phase.ACT
    assert ask.purpose == "actions"
    assert said(run) == ["hi", "Hello.", "and in French"]
    run, _ = feed(run, Replied("{}"), Streamed("Bonjour."), Replied(""))
    assert run.end == Completed("stop", run.usage)
    assert said(run) == ["hi", "Hello.", "and in French", "Bonjour."]
    assert run.draft.text == "Bonjour."


def test_the_next_turn_has_steps_of_its_own_and_counts_on():
    run, _ = feed(started("echo", settings=RunSettings(max_steps=1))[0], Replied(ECHO))
    assert run.phase is Phase.CALL
    answering, _ = feed(
        started("echo", settings=RunSettings(max_steps=1, on_max_steps="answer"))[0],
        Replied(ECHO),
        returned("call_1_1"),
    )
    assert answering.phase is Phase.ANSWER
    run, _ = feed(answering, Streamed("One."), MORE, Replied(""))
    assert run.phase is Phase.ACT
    run, commands = feed(run, Replied(ECHO))
    assert [c.id for c in made(commands)] == ["call_2_1"]


def test_an_end_that_comes_first_leaves_it_in_the_conversation():
    run, _ = feed(started("echo")[0], MORE)
    run, _ = feed(run, *closing_events(run, Aborted("enough")))
    assert said(run) == ["hi", "and in French"]


# Wherever the run is


async def slowly(**_):
    await asyncio.sleep(3)
    return "done"


def test_it_is_on_record_and_told_when_it_has_been_taken():
    async def story():
        rooms = house('{"tool": "slow"}', "{}", "{}", "Voilà.", tools={"slow": slowly})
        entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        await asyncio.sleep(1)
        await rooms.runs.send_message(entry.run_id, MORE)
        record = (await rooms.store.read(entry.run_id))[-1]
        assert (record.event_type, record.content) == ("user_message", "and in French")
        heard = await rooms.told(entry.run_id)
        assert facts(heard) == [
            *("user_message", "tool_call", "user_message", "tool_result", "agent_response")
        ]
        assert MORE.message in rooms.model.requests[1][-1].content

    run_virtually(story())


def test_one_that_is_sent_again_joins_once_and_with_other_words_never():
    async def story():
        rooms = house({"content": "{}", "delay_ms": 5000}, "{}", "Hello.")
        entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        await asyncio.gather(*(rooms.runs.send_message(entry.run_id, MORE) for _ in range(3)))
        with pytest.raises(IdempotencyMismatch):
            await rooms.runs.send_message(entry.run_id, MessageQueued("something else", "m-1"))
        assert facts(await rooms.told(entry.run_id)).count("user_message") == 2

    run_virtually(story())


def test_a_run_that_has_ended_or_never_was_or_has_heard_enough_takes_none():
    async def story():
        rooms = house({"content": "{}", "delay_ms": 5000}, "{}", "Hello.")
        entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        for n in range(MAX_MESSAGES_PER_RUN):
            await rooms.runs.send_message(entry.run_id, MessageQueued("more", f"m-{n}"))
        with pytest.raises(TooManyMessages, match="as many messages as it takes"):
            await rooms.runs.send_message(entry.run_id, MessageQueued("more", "one too many"))
        await rooms.told(entry.run_id)
        with pytest.raises(RunEnded):
            await rooms.runs.send_message(entry.run_id, MessageQueued("more", "too late"))
        with pytest.raises(RunNotFound):
            await rooms.runs.send_message(f"{entry.run_id[:-1]}x", MORE)

    run_virtually(story())


def test_a_run_that_waits_for_its_turn_keeps_it():
    async def story():
        rooms = house({"content": "{}", "delay_ms": 5000}, "Hello.")
        first = await rooms.runs.start(RunRequest((Message("user", "one"),), session_id="s"))
        second = await rooms.runs.start(RunRequest((Message("user", "two"),), session_id="s"))
        assert (await rooms.runs.send_message(second.run_id, MORE)).status == "queued"
        assert (await rooms.runs.entry(first.run_id)).status == "running"
        heard = await rooms.told(second.run_id)
        assert types(heard)[:3] == ["user_message", "user_message", "offered"]
        assert [m.content for m in rooms.model.requests[2]][-1:] == ["two\n\nand in French"]

    run_virtually(story())


@pytest.mark.parametrize("is_queued", [False, True], ids=["running", "queued"])
@virtually
async def test_it_reaches_a_run_of_another_process(is_queued):
    store = SharedStore()
    slow = {"content": "{}", "delay_ms": 5000}
    a, b = (replica(store, n, slow, "{}", "Hello.") for n in "ab")
    run_id = await begin(a, session_id="s")
    if is_queued:
        run_id = await begin(a, "two", session_id="s")
    await asyncio.sleep(1)
    await b.run(b.runs.send_message(run_id, MORE))
    heard = await told(b, run_id)
    assert facts(heard)[:2] == ["user_message", "user_message"]
    assert any(MORE.message in sent[-1].content for sent in a.model.requests)
    assert b.model.requests == []


@virtually
async def test_what_a_queued_run_was_told_survives_its_process():
    store = SharedStore()
    slow = {"content": "{}", "delay_ms": 5000}
    a, b = (replica(store, n, slow, "Hello.", "Hello.") for n in "ab")
    await begin(a, "one", session_id="s")
    second = await begin(a, "two", session_id="s")
    await a.run(a.runs.send_message(second, MORE))
    a.kill()
    heard = await told(b, second)
    assert [r.content for r in records(heard)[:2]] == ["two", "and in French"]


# What it must not do


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another process"])
@virtually
async def test_a_message_to_a_waiting_run_under_the_id_of_another_one_is_refused(elsewhere):
    store = SharedStore()
    slow = {"content": "{}", "delay_ms": 60_000}
    a, b = (replica(store, n, slow, "{}", "Hello.") for n in "ab")
    await begin(a, "one", session_id="s")
    second = await begin(a, "two", session_id="s")
    at = b if elsewhere else a
    for _ in range(2):
        await at.run(at.runs.send_message(second, MessageQueued("more", "m-1")))
    for other in (MessageQueued("less", "m-1"), MessageQueued("more", "m-1", is_follow_up=True)):
        with pytest.raises(IdempotencyMismatch):
            await at.run(at.runs.send_message(second, other))


@virtually
async def test_the_store_keeps_no_signal_that_is_on_record():
    store = SharedStore()
    a, b = (replica(store, n, {"content": "{}", "delay_ms": 5000}, "Hello.") for n in "ab")
    run_id = await begin(a)
    for n, at in enumerate((a, b)):
        await at.run(at.runs.send_message(run_id, MessageQueued("more", f"m-{n}")))
    assert store.runs[run_id].signals == []


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another process"])
@virtually
async def test_what_a_waiting_run_was_told_is_on_record_when_it_is_cancelled(elsewhere):
    store = SharedStore()
    slow = {"content": "{}", "delay_ms": 60_000}
    a, b = (replica(store, n, slow, "{}", "Hello.") for n in "ab")
    await begin(a, "one", session_id="s")
    second = await begin(a, "two", session_id="s")
    at = b if elsewhere else a
    assert (
        await at.run(at.runs.send_message(second, MessageQueued("more", "m-1")))
    ).status == "queued"
    await at.run(at.runs.cancel(second))
    assert event_types(store, second) == ["user_message", "user_message", "aborted"]


@virtually
async def test_a_call_that_has_not_begun_when_a_message_came_is_not_made_by_the_next_owner():
    store = SharedStore()

    async def work(**_):
        await asyncio.sleep(1)
        return "done"

    def slow(call):
        return 0.5 if not call.is_done and "tool_result" in call.about else None

    two = '[{"tool": "one"}, {"tool": "two"}]'
    about = {"tools": FunctionTools({"one": work, "two": work})}
    about["definition"] = AgentDefinition("", RunSettings(max_parallel_calls=1))
    a = replica(store, "a", two, "{}", "Hi.", trouble=slow, **about)
    b = replica(store, "b", "{}", "{}", "Hi.", **about)
    run_id = await begin(a)
    await asyncio.sleep(1.2)  # the result of the first call is being recorded
    steering = asyncio.create_task(
        b.run(b.runs.send_message(run_id, MessageQueued("stop that", "m-1")))
    )
    await asyncio.sleep(0.1)
    await a.run(a.runs.close())
    await steering
    await told(b, run_id)
    rows = [(r.event_type, r.metadata.get("call_id")) for r in log(store, run_id)]
    heard = next(n for n, r in enumerate(log(store, run_id)) if r.metadata.get("message_id"))
    assert [row for row in rows[heard:] if row[0] == "tool_call"] == [], rows


def test_a_step_is_never_beyond_what_progress_says_is_the_most():
    async def echo(**_):
        return "x"

    async def story():
        slowly = {"content": "One two three", "chunk_ms": 1000}
        call = '{"tool": "echo"}'
        definition = AgentDefinition("", RunSettings(max_steps=1, on_max_steps="answer"))
        rooms = house(call, slowly, call, "Two.", tools={"echo": echo}, definition=definition)
        entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
        telling = asyncio.create_task(rooms.told(entry.run_id))
        await asyncio.sleep(1.5)
        await rooms.runs.send_message(entry.run_id, MessageQueued("more", "m-1"))
        blocks = [i.fields for i in await telling if getattr(i, "type", "") == "progress"]
        assert len(blocks) == 2
        assert [b for b in blocks if b["step"] > b["max_steps"]] == []

    run_virtually(story())
