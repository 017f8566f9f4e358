"""Runs that make the same call again and again, and what stops them (loop.md §8)."""

import pytest
from support.doubles import tool
from support.feeding import feed, made, returned, started

from diptych.loop.catalog import Catalog
from diptych.loop.commands import AskModel
from diptych.loop.events import Called, MessageQueued, OwnerChanged, Replied
from diptych.loop.messages import Delegation, ToolCall
from diptych.loop.reducer import advance
from diptych.loop.run_settings import RunSettings
from diptych.loop.stuck import note_side_effect, repeats

CATALOG = Catalog((tool("pay"), tool("look", read_only=True)))
LOOK = '{"tool": "look", "arguments": {"at": "a"}}'
PAY = '{"tool": "pay", "arguments": {"to": "a"}}'


def run_with(max_steps=20):
    return started(settings=RunSettings(max_steps), with_offers=CATALOG)[0]


def step(run, *replies_and_results):
    """Steps of one call each, with its result's text and error."""
    commands = ()
    for reply, text, error in replies_and_results:
        run, commands = feed(run, Replied(reply))
        [call] = made(commands)
        run, commands = feed(run, Called(call, run.step), returned(call.id, text, error))
    return run, commands


SAME = (LOOK, "nothing", None)
FAILING = (LOOK, "down", "failed")


@pytest.mark.parametrize(
    ("step_", "why"),
    [(SAME, "gave the same result 3 times"), (FAILING, "failed 3 times")],
    ids=["the same result", "a failure"],
)
def test_the_third_time_ends_the_run(step_, why):
    run, (ask,) = step(run_with(), step_, step_)
    assert isinstance(ask, AskModel)
    run, commands = step(run, step_)
    assert commands == ()
    assert (run.end.code, run.end.message) == (
        "stuck",
        f"the run is stuck at look: the same call {why}",
    )


def test_failures_count_whatever_they_say():
    run, _ = step(run_with(), *[(LOOK, f"down since {n} s", "timeout") for n in range(3)])
    assert run.end.code == "stuck"


def test_other_results_and_other_arguments_are_no_repetition():
    other = '{"tool": "look", "arguments": {"at": "b"}}'
    different = [(LOOK, f"at {n} %", None) for n in range(5)]
    run, _ = step(run_with(), *different, SAME, (other, "nothing", None), SAME)
    assert run.end is None


def test_steps_between_do_not_hide_it():
    other = '{"tool": "look", "arguments": {"at": "b"}}'
    run, _ = step(run_with(), SAME, (other, "1", None), SAME, (other, "2", None), SAME)
    assert run.end.code == "stuck"


def test_the_order_of_arguments_does_not_matter():
    one = '{"tool": "look", "arguments": {"at": "a", "in": "b"}}'
    two = '{"tool": "look", "arguments": {"in": "b", "at": "a"}}'
    run, _ = step(run_with(), *[(reply, "x", None) for reply in (one, two, one)])
    assert run.end.code == "stuck"


def test_it_does_not_matter_how_a_call_is_written():
    ways = [
        '{"tool": "look", "arguments": {"at": [{"x": 1}, "1.0"]}}',
        '{"tool": "look", "arguments": {"at": [{"x": 1.0}, "1.0"]}}',
        '{"tool": "box__look", "arguments": {"at": [{"x": 1e0}, "1.0"]}}',
    ]
    run, _ = step(run_with(), *[(reply, "x", None) for reply in ways])
    assert run.end.code == "stuck"


def test_a_number_is_not_a_text_and_one_is_not_another():
    values = ("1", '"1"', '"1.0"', "1.5", "10", "true")
    replies = [f'{{"tool": "look", "arguments": {{"at": {value}}}}}' for value in values]
    run, _ = step(run_with(), *[(reply, "x", None) for reply in replies])
    assert run.end is None


def test_what_was_skipped_or_is_unknown_says_nothing():
    run, _ = step(run_with(), *[(LOOK, "outcome: unknown", "unknown")] * 5)
    assert run.end is None


def test_a_message_begins_a_new_count():
    run, _ = step(run_with(), SAME, SAME)
    run, _ = feed(run, MessageQueued("look once more", "m"), Replied(LOOK))
    run, _ = step(run, SAME)
    assert run.end is None


def test_a_message_for_later_begins_a_new_count_when_its_turn_begins():
    later = MessageQueued("and then?", "m", is_follow_up=True)
    run, _ = step(run_with(), SAME, SAME)
    run, _ = feed(run, later, Replied(LOOK))
    assert step_on(run).end.code == "stuck"
    run, _ = step(run_with(), SAME, SAME)
    run, _ = feed(run, later, Replied("{}"), Replied("Nothing."), Replied(LOOK))
    assert step_on(run).end is None


def step_on(run):
    """The run after the result of its call."""
    call = run.calls[0]
    return feed(run, Called(call, run.step), returned(call.id, "nothing"))[0]


def test_a_new_owner_ends_the_run_all_the_same():
    run, _ = step(run_with(), SAME, SAME)
    run, commands = feed(run, OwnerChanged(), Replied(LOOK))
    [call] = made(commands)
    run, _ = feed(run, Called(call, run.step), OwnerChanged(), returned(call.id, "nothing"))
    assert run.end.code == "stuck"


def test_a_run_on_record_that_another_version_let_go_on_can_be_read():
    """That version asked the model after the third time, and its reply is the next record."""
    run, _ = step(run_with(), SAME, SAME)
    run, commands = feed(run, Replied(LOOK))
    [call] = made(commands)
    run, _ = feed(run, Called(call, run.step))
    run, _ = advance(run, returned(call.id, "nothing"))
    run, _ = feed(run, Replied("{}"), Replied("Nothing is there."))
    assert run.answer == "Nothing is there."


def test_effects_are_counted_in_consecutive_steps():
    run, commands = feed(run_with(), Replied(PAY))
    [call] = made(commands)
    assert repeats(run, call) == 0
    run, _ = feed(run, Called(call, 1), returned(call.id, "paid 1"))
    run, commands = feed(run, Replied(PAY))
    [call] = made(commands)
    assert repeats(run, call) == 1
    run, _ = feed(run, returned(call.id, "denied: no", "denied"), Replied(PAY))
    assert repeats(run, call) == 1
    run, _ = feed(run, Called(run.calls[0], 3), returned(run.calls[0].id, "paid 2"))
    assert repeats(run, call) == 2
    run, _ = step(run, (LOOK, "x", None))
    assert repeats(run, call) == 0


def test_an_effect_by_the_tools_other_name_is_the_same():
    other = PAY.replace("pay", "box__pay")
    run, _ = step(run_with(), (PAY, "paid 1", None), (other, "paid 2", None))
    assert repeats(run, ToolCall("call_3_1", "pay", {"to": "a"})) == 2
    run, _ = feed(run, Replied(other))
    run, _ = feed(run, returned(run.calls[0].id, "denied: no", "denied"))
    assert repeats(run, ToolCall("call_4_1", "pay", {"to": "a"})) == 2


def test_reading_has_no_effect():
    run, _ = step(run_with(), (LOOK, "1", None), (LOOK, "2", None))
    run, commands = feed(run, Replied(LOOK))
    assert repeats(run, made(commands)[0]) == 0


def test_a_delegation_is_no_side_effect_and_one_call_does_not_count_for_another():
    begun = run_with()
    assert note_side_effect(begun, Delegation("call_1_1", "worker", "t")) is begun
    run, _ = step(begun, (PAY, "paid", None))
    assert repeats(run, ToolCall("call_2_1", "pay", {"to": "a"})) == 1
    assert repeats(run, ToolCall("call_2_1", "pay", {"to": "b"})) == 0
