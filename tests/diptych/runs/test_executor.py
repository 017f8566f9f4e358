"""How one run is executed from its record: by its opener, and by who takes it over."""

import pytest
from support.doubles import house, types
from support.replicas import replica, told, when
from support.shared_store import SharedStore
from support.stories import TAKEN_UP, begin, content, ends, log, now, virtually

from diptych.core.events import Origin
from diptych.runs.definition import AgentDefinition

HANG = {"content": "{}", "delay_ms": 1e9}


@virtually
async def test_a_run_that_has_ended_only_has_to_leave_the_queue(caplog):
    store = SharedStore()
    a, b = replica(store, "a", "{}", "Done."), replica(store, "b", HANG)
    a.trouble = when("conclude", act=a.kill, is_done=False)
    run_id = await begin(a, session_id="s")
    waits = await begin(b, session_id="s", origin=Origin(seconds=2 * TAKEN_UP))
    await told(b, waits)
    assert ends(log(store, run_id)) == ["completed"]
    assert "owner_changed" not in types(log(store, run_id))
    assert "Done." in [message.content for message in store.conversation("s")]
    assert "unexpected error" not in caplog.text


@virtually
async def test_a_run_that_has_ended_and_cannot_be_rebuilt_has_no_second_end():
    store = SharedStore()
    a, b = replica(store, "a", "{}", "Done."), replica(store, "b", "{}", "x")
    a.trouble = when("conclude", act=a.kill, is_done=False)
    run_id = await begin(a, session_id="s")
    waits = await begin(b, session_id="s")
    await told(b, run_id)
    store.blobs.clear()
    await told(b, waits)
    assert ends(log(store, run_id)) == ["completed"]


@pytest.mark.parametrize(
    ("caller_s", "manifest_s", "seconds"),
    [
        pytest.param(None, 5.0, 5, id="the manifest's"),
        pytest.param(5.0, None, 5, id="the caller's"),
        pytest.param(5.0, 9.0, 5, id="the caller's, as the shorter"),
        pytest.param(9.0, 5.0, 5, id="the manifest's, as the shorter"),
    ],
)
@virtually
async def test_the_earlier_deadline_ends_a_run(caller_s, manifest_s, seconds):
    rooms = house(HANG, definition=AgentDefinition(deadline=manifest_s))
    begun = now()
    heard = await rooms.ask(seconds=caller_s)
    assert heard[-1].metadata["code"] == "deadline_exceeded"
    assert content(heard, "failed") == ["the run ran out of time"]
    assert now() - begun == pytest.approx(seconds, abs=0.2)
