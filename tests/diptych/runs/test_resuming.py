"""Runs that failed or were aborted are taken up by new ones, and no call is made again."""

import asyncio

import pytest
from support.doubles import facts, house, types
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import CALL, Counted, Hung, begin, content, ends, virtually

from diptych.core.errors import InvalidRequest, NotResumable, RunNotFound
from diptych.core.events import Origin
from diptych.core.prompt import final_prompt
from diptych.core.run_settings import RunSettings
from diptych.runs.definition import AgentDefinition

FAILS = {"error": "the model is ill"}


def resumable(*replies, **settings):
    charge = Counted()
    definition = AgentDefinition("Be brief.", RunSettings(**settings))
    return house(*replies, tools=charge.tools, definition=definition), charge


async def resumed(home, run_id, *replies, **rest):
    """Resume a run whose model says something else now."""
    home.model._script = type(home.model)(*replies)._script
    entry = await home.runs.resume(run_id, **rest)
    return entry, await home.told(entry.run_id)


async def test_a_run_that_failed_in_phase_2_goes_on_and_its_call_is_not_made_again():
    home, charge = resumable(CALL, "{}", FAILS)
    failed = await home.ask("Charge it.", "s-1", system="Rhyme.")
    assert types(failed)[-1] == "failed"
    entry, heard = await resumed(home, failed[0].run_id, "{}", "It is charged.")
    assert entry.session_id == "s-1"
    assert heard[0].metadata["resumes"] == failed[0].run_id
    assert facts(heard) == ["user_message", "agent_response"]
    assert ends(heard) == ["completed"]
    assert charge.count == 1
    request = home.model.requests[-1]
    assert "Rhyme." in request[0].content
    assert sum(m.content.startswith("Charge it.") for m in request) == 1
    assert request[-1].content.endswith(final_prompt("Charge it."))
    assert any("Result of tool charge" in m.content for m in request)
    assert await home.store.conversation("s-1") == tuple(
        m for run in home.store._sessions["s-1"].runs for m in home.store._runs[run].messages
    )


async def test_a_run_is_resumed_once():
    home, _ = resumable("{}", FAILS)
    failed = await home.ask("hi", "s-1")
    home.model._script = type(home.model)("{}", "Done.")._script
    both = await asyncio.gather(*(home.runs.resume(failed[0].run_id) for _ in range(2)))
    await home.told(both[0].run_id)
    again = await home.runs.resume(failed[0].run_id)
    assert {entry.run_id for entry in (*both, again)} == {again.run_id}


async def test_a_run_that_was_resumed_gives_that_run_also_when_its_session_has_gone_on():
    home, _ = resumable("{}", FAILS)
    failed = await home.ask("hi", "s-1")
    entry, _ = await resumed(home, failed[0].run_id, "{}", FAILS)
    later, _ = await resumed(home, entry.run_id, "{}", "Done.")
    home.model._script = type(home.model)("{}", "Yes?")._script
    await home.ask("hello?", "s-1")
    assert (await home.runs.resume(failed[0].run_id)).run_id == entry.run_id
    assert (await home.runs.resume(entry.run_id)).run_id == later.run_id
    assert len(await home.runs.entries("s-1")) == 4


async def test_what_cannot_be_resumed_says_why():
    home, _ = resumable("{}", "Done.", max_steps=3)
    done = await home.ask("hi", "s-1")
    with pytest.raises(NotResumable, match="failed or was aborted"):
        await home.runs.resume(done[0].run_id)
    with pytest.raises(RunNotFound):
        await home.runs.resume("run-0000000a-nothing")
    home.model._script = type(home.model)("{}", FAILS)._script
    failed = await home.ask("hi", "s-1")
    with pytest.raises(InvalidRequest, match="at most 3"):
        await home.runs.resume(failed[0].run_id, max_steps=4)
    await home.ask("hello?", "s-1")
    with pytest.raises(NotResumable, match="has continued with run-"):
        await home.runs.resume(failed[0].run_id)


@virtually
async def test_a_run_that_has_not_ended_cannot_be_resumed():
    store = SharedStore()
    at = replica(store, "a", model=Hung())
    run_id = await begin(at)
    await asyncio.sleep(1)
    with pytest.raises(NotResumable, match="has not ended"):
        await at.run(at.runs.resume(run_id))


@virtually
async def test_a_run_that_was_aborted_before_its_turn_is_resumed_with_its_message():
    store = SharedStore()
    at = replica(store, "a", {"content": "{}", "delay_ms": 4_000}, "Done.")
    first, second = [await begin(at, f"question {n}", "s-1") for n in range(2)]
    await asyncio.sleep(1)
    await at.run(at.runs.cancel(second))
    entry = await at.run(at.runs.resume(second, Origin()))
    heard = await told(at, entry.run_id)
    assert ends(heard) == ["completed"]
    assert content(heard, "user_message") == ["question 1"]
    assert [m.content for m in at.model.requests[-1] if "question 1" in m.content]
    assert ends(await told(at, first)) == ["completed"]


@virtually
async def test_a_message_that_comes_while_a_run_is_resumed_keeps_it_from_another_conversation():
    def trouble(call):
        return 1.0 if call.name == "open" and not call.is_done else None

    store = SharedStore()
    a, b = (replica(store, name, {"content": "{}", "delay_ms": 10}, "x") for name in "ab")
    old = await begin(a, session_id="s-1")
    await a.run(a.runs.cancel(old))
    await told(a, old)
    a.trouble = trouble
    resuming = a.spawn(a.runs.resume(old))
    await asyncio.sleep(0.5)
    new = await begin(b, "something new", "s-1")
    with pytest.raises(NotResumable, match="has continued"):
        await resuming
    assert ends(await told(b, new)) == ["completed"]
    assert store.sessions["s-1"].runs == [old, new]
    assert a.runs.active_count == 0
