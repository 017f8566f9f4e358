"""Runs that repeat themselves, and what stops them (loop.md §8)."""

import pytest
from support.doubles import tool
from support.feeding import feed, made, returned, started

from diptych.core.catalog import Catalog
from diptych.core.events import (
    Called,
    Replied,
)
from diptych.core.messages import ToolCall
from diptych.core.run_settings import RunSettings
from diptych.core.stuck import repeats

CATALOG = Catalog((tool("pay"), tool("look", read_only=True), tool("set", idempotent=True)))
LOOK = '{"tool": "look", "arguments": {"at": "a"}}'
PAY = '{"tool": "pay", "arguments": {"to": "a"}}'
DOWN = (LOOK, "down", "failed")
FINE = (LOOK, "nothing", None)
AGAIN = (PAY, "repeated: no", "repeated")


def run_with(max_steps=20):
    return started(settings=RunSettings(max_steps), with_offers=CATALOG)[0]


def step(run, *replies_and_results):
    """Steps of one call each, with its result's text and error; one that is denied is not sent."""
    commands = ()
    for reply, text, error in replies_and_results:
        run, commands = feed(run, Replied(reply))
        [call] = made(commands)
        if error not in {"denied", "repeated"}:
            run, _ = feed(run, Called(call, run.step))
        run, commands = feed(run, returned(call.id, text, error))
    return run, commands


def asked(run, reply=PAY):
    """The run's next call, which is about to be made, and in how many steps it was asked for."""
    run, commands = feed(run, Replied(reply))
    call = made(commands)[-1]
    return run, call, repeats(run, call)


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        pytest.param([DOWN] * 5, "stuck", id="the same error"),
        pytest.param([FINE] * 9, None, id="the same result"),
        pytest.param([DOWN, DOWN, FINE, DOWN, DOWN, DOWN], None, id="a success between"),
        pytest.param([(LOOK, f"down since {n} s", "failed") for n in range(9)], None, id="others"),
        pytest.param([(PAY, "down", "failed")] * 2 + [AGAIN] * 3, "stuck", id="not repeated"),
        pytest.param([(PAY, "paid", None)] * 2 + [AGAIN] * 9, None, id="repeated after a success"),
        pytest.param([(PAY, "denied: no", "denied")] * 5, "stuck", id="denied each time"),
    ],
)
def test_five_steps_that_bring_nothing_but_the_same_error_end_the_run(steps, end):
    run, _ = step(run_with(), *steps)
    assert (run.end and run.end.code) == end
    if end:
        name = steps[0][0].split('"')[3]
        why = "5 steps in a row failed with the same error"
        assert run.end.message == f"the run is stuck at {name}: {why}"


def test_effects_are_counted_in_consecutive_steps_and_denials_keep_the_count():
    run = run_with()
    assert asked(run)[2] == 0
    run, _ = step(run, (PAY, "paid 1", None))
    assert asked(run)[2] == 1
    run, _ = step(run, (PAY, "denied: no", "denied"), (PAY, "down", "failed"), AGAIN, AGAIN)
    assert asked(run)[2] == 2
    assert asked(run, PAY.replace('"a"', '"b"'))[2] == 0
    run, _ = step(run, (LOOK, "x", None))
    assert asked(run)[2] == 0
    run, _ = step(run, (PAY, "denied: no", "denied"))
    assert asked(run)[2] == 0


def test_an_effect_with_references_is_counted_as_it_is_made():
    pair = '[{"id": "a", "tool": "look"}, {"tool": "pay", "arguments": {"to": "${a}"}}]'
    run = run_with()
    for error in (None, None, "repeated", "repeated"):
        run, commands = feed(run, Replied(pair))
        [look] = made(commands)
        run, commands = feed(run, Called(look, run.step), returned(look.id, "a"))
        [pay] = made(commands)
        assert pay.arguments == {"to": "a"}
        if error is None:
            run, _ = feed(run, Called(pay, run.step))
        run, _ = feed(run, returned(pay.id, "x", error))
    assert repeats(run, ToolCall("call_9_1", "pay", {"to": "a"})) == 2


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ('{"at": "a", "in": "b"}', '{"in": "b", "at": "a"}', True),
        ('{"at": 1}', '{"at": "1"}', False),
        ('{"at": "1"}', '{"at": "1.0"}', False),
        ('{"at": 1}', '{"at": true}', False),
        ('{"at": 1}', '{"at": 1.5}', False),
    ],
)
def test_it_does_not_matter_how_an_effect_is_written(one, other, is_same):
    written = '{{"tool": "{}", "arguments": {}}}'.format
    run, _ = step(run_with(), (written("pay", one), "paid", None))
    assert asked(run, written("box__pay", other))[2] == int(is_same)


@pytest.mark.parametrize("name", ["look", "set"])
def test_reading_is_no_effect_and_nor_is_what_may_be_done_twice(name):
    reply = f'{{"tool": "{name}", "arguments": {{}}}}'
    run, _ = step(run_with(), (reply, "1", None), (reply, "2", None))
    assert asked(run, reply)[2] == 0
