"""Messages to a run at each of its moments, wherever it runs: never lost, never twice (§6)."""

import asyncio
from contextlib import suppress

import pytest
from support.doubles import house
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, virtually
from support.virtual_time import VirtualLoop

from diptych.core.errors import RunEnded, StoreError
from diptych.core.events import MessageQueued
from diptych.core.messages import Message
from diptych.core.run_settings import RunSettings
from diptych.runs.definition import AgentDefinition
from diptych.runs.request import RunRequest

CALL = '{"tool": "work"}'
REPLIES = (
    {"content": CALL, "delay_ms": 10},
    {"content": "{}", "delay_ms": 10},
    {"content": "One two three four.", "chunk_ms": 30},
)
ECHOES = ("{}", "Yes.") * 40  # for the turns that follow
SLOW = {"content": "{}", "delay_ms": 5_000}


async def work(**_):
    await asyncio.sleep(0.05)
    return "done"


class SteppedLoop(VirtualLoop):
    """Calls back at its nth turn: between any two awaits that can be told apart."""

    def __init__(self):
        super().__init__()
        self.turns = 0
        self.at = {}

    def _run_once(self):
        self.turns += 1
        if callback := self.at.pop(self.turns, None):
            callback()
        super()._run_once()


def run_stepped(work):
    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(work)


def message(name="m", text="and more", **rest):
    return MessageQueued(text, name, **rest)


def conversation_of(requests):
    return "\n".join(m.content for sent in requests for m in sent if m.role == "user")


# At every moment


async def sent_at(turn, is_follow_up, mode, settled):
    """Begin a run and send it a message at a turn of the event loop; say whether it was taken."""
    loop = asyncio.get_running_loop()
    definition = AgentDefinition("", RunSettings(queue_mode=mode))
    rooms = house(*REPLIES, *ECHOES, tools={"work": work}, definition=definition)
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    sending = []
    for later, name in enumerate("mn"):
        asked = message(name, f"and more {name}", is_follow_up=is_follow_up)
        loop.at[loop.turns + turn + later] = lambda asked=asked: sending.append(
            loop.create_task(rooms.runs.send_message(entry.run_id, asked))
        )
        if turn == 1:
            break
    await rooms.told(entry.run_id)
    loop.at.clear()
    taken = 0
    for task in sending:
        with suppress(RunEnded):
            await task
            taken += 1
    records = await rooms.store.read(entry.run_id)
    heard = [r for r in records if "message_id" in r.metadata]
    assert len(heard) == len({r.metadata["message_id"] for r in heard}) == taken
    assert records[-1].event_type == "completed"
    told_model = conversation_of(rooms.model.requests[-1:])
    for record in heard:
        assert told_model.count(str(record.content)) >= 1, "its answer has heard it"
    await rooms.runs.close(100)
    said = [m.content for m in await rooms.store.conversation(entry.session_id)]
    assert all(said.count(record.content) == 1 for record in heard)
    settled.append(bool(sending))


@pytest.mark.parametrize("mode", ["one", "all"])
@pytest.mark.parametrize("is_follow_up", [False, True], ids=["steer", "follow-up"])
def test_a_message_at_any_await_is_answered_or_refused(is_follow_up, mode):
    settled = []
    turn = 0
    while not settled or settled[-1]:
        turn += 1
        run_stepped(sent_at(turn, is_follow_up, mode, settled))
    assert turn > 25, "a run has that many moments"


async def until_answered(runs, run_id, asked):
    """Send a message again, as its sender is told to, until there is an answer."""
    for _ in range(5):
        with suppress(StoreError):
            return await runs.send_message(run_id, asked)
    raise StoreError("nobody answers")


@pytest.mark.parametrize("dies_after", [2, 23])
@pytest.mark.parametrize("is_follow_up", [False, True], ids=["steer", "follow-up"])
def test_a_message_at_any_await_survives_the_run_s_owner(is_follow_up, dies_after):
    async def story(turn):
        loop = asyncio.get_running_loop()
        store = SharedStore()
        a, b = (replica(store, n, *REPLIES, *ECHOES, tools={"work": work}) for n in "ab")
        run_id = await begin(a)
        sending = []
        asked = message(is_follow_up=is_follow_up)
        loop.at[loop.turns + turn] = lambda: sending.append(
            loop.create_task(b.run(until_answered(b.runs, run_id, asked)))
        )
        loop.at[loop.turns + turn + 1 + dies_after] = a.kill
        await told(b, run_id)
        loop.at.clear()
        is_taken = False
        for task in sending:
            with suppress(RunEnded):
                await task
                is_taken = True
        records = log(store, run_id)
        assert sum("message_id" in r.metadata for r in records) == is_taken, turn
        assert records[-1].event_type == "completed"
        if is_taken:
            requests = [*a.model.requests, *b.model.requests]
            assert "and more" in conversation_of(requests)
        await b.run(b.runs.close())

    for turn in range(1, 70, 3):
        run_stepped(story(turn))


# Reading and clearing


async def waiting(runs, run_id):
    return [(m.message, m.is_follow_up) for m in await runs.queued_messages(run_id)]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "another process"])
@pytest.mark.parametrize("is_queued", [False, True], ids=["running", "queued"])
@virtually
async def test_queues_are_read_and_cleared_from_wherever(is_queued, elsewhere):
    store = SharedStore()
    a, b = (replica(store, n, SLOW, *ECHOES) for n in "ab")
    run_id = await begin(a, session_id="s")
    if is_queued:
        run_id = await begin(a, "two", session_id="s")
    at = b if elsewhere else a
    await asyncio.sleep(1)
    await a.run(a.runs.send_message(run_id, message("a", "now")))
    await b.run(b.runs.send_message(run_id, message("b", "later", is_follow_up=True)))
    assert await at.run(waiting(at.runs, run_id)) == [("now", False), ("later", True)]
    cleared = await at.run(at.runs.clear_messages(run_id))
    assert [m.message for m in cleared] == ["now", "later"]
    assert await at.run(waiting(at.runs, run_id)) == []
    await a.run(a.runs.send_message(run_id, message("c", "after all")))
    await told(b, run_id)
    requests = conversation_of(a.model.requests)
    assert "after all" in requests
    assert "now" not in requests
    assert sum(r.event_type == "queue_cleared" for r in log(store, run_id)) == 1


@virtually
async def test_a_new_owner_clears_once_what_was_cleared_before_its_time():
    store = SharedStore()
    a, b = (replica(store, n, SLOW, SLOW, *ECHOES) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    await b.run(b.runs.send_message(run_id, message("a", "now")))
    await b.run(b.runs.clear_messages(run_id))
    await b.run(b.runs.send_message(run_id, message("b", "then")))
    a.kill()  # the next owner is sent all of its signals again
    await told(b, run_id)
    assert sum(r.event_type == "queue_cleared" for r in log(store, run_id)) == 1
    assert "then" in conversation_of(b.model.requests)
