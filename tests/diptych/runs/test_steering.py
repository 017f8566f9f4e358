"""A message to a run that is there: it joins as soon as it can, once, and is never lost (§6)."""

import asyncio

import pytest
from support.doubles import facts, house
from support.feeding import feed, made, returned, started
from support.replicas import replica
from support.shared_store import SharedStore
from support.stories import begin, log, virtually

from diptych.core.errors import IdempotencyMismatch, RunEnded, RunNotFound, TooManyMessages
from diptych.core.events import Called, MessageQueued, Replied, Streamed
from diptych.core.messages import Message
from diptych.core.run_settings import RunSettings
from diptych.core.state import MAX_MESSAGES_PER_RUN, Phase
from diptych.runs.request import RunRequest

MORE = MessageQueued("and in French", "m-1")
TWO = '[{"tool": "a"}, {"tool": "b"}]'
ECHO = '{"tool": "echo", "arguments": {"text": "a"}}'


def event_types(store, run_id):
    return [r.event_type for r in log(store, run_id)]


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


def test_the_next_turn_has_steps_of_its_own_and_counts_on():
    settings = RunSettings(max_steps=1, on_max_steps="answer")
    run, _ = feed(started("echo", settings=settings)[0], Replied(ECHO), returned("call_1_1"))
    assert run.phase is Phase.ANSWER
    run, _ = feed(run, Streamed("One."), MORE, Replied(""))
    assert run.phase is Phase.ACT
    run, commands = feed(run, Replied(ECHO))
    assert [c.id for c in made(commands)] == ["call_2_1"]


# Wherever the run is


async def slowly(**_):
    await asyncio.sleep(3)
    return "done"


@virtually
async def test_it_is_on_record_and_told_when_it_has_been_taken():
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


@virtually
async def test_one_that_is_sent_again_joins_once_and_with_other_words_never():
    rooms = house({"content": "{}", "delay_ms": 5000}, "{}", "Hello.")
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    await asyncio.gather(*(rooms.runs.send_message(entry.run_id, MORE) for _ in range(3)))
    with pytest.raises(IdempotencyMismatch):
        await rooms.runs.send_message(entry.run_id, MessageQueued("something else", "m-1"))
    assert facts(await rooms.told(entry.run_id)).count("user_message") == 2


@virtually
async def test_a_run_that_has_ended_or_never_was_or_has_heard_enough_takes_none():
    rooms = house({"content": "{}", "delay_ms": 5000}, "{}", "Hello.")
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    for n in range(MAX_MESSAGES_PER_RUN):
        await rooms.runs.send_message(entry.run_id, MessageQueued("more", f"m-{n}"))
    with pytest.raises(TooManyMessages, match="accepts no more messages"):
        await rooms.runs.send_message(entry.run_id, MessageQueued("more", "one too many"))
    await rooms.told(entry.run_id)
    with pytest.raises(RunEnded):
        await rooms.runs.send_message(entry.run_id, MessageQueued("more", "too late"))
    with pytest.raises(RunNotFound):
        await rooms.runs.send_message(f"{entry.run_id[:-1]}x", MORE)


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
