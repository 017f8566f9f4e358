"""What a run uses of its budget, and how it ends when nothing is left. Pure."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles import catalog
from support.feeding import feed, made, returned, started

from diptych.core.budget import Budget, Prices
from diptych.core.commands import AskModel, MakeCall
from diptych.core.events import Called, Failed, Offered, Replied, RunRequested
from diptych.core.messages import Delegation, ToolCall, Usage, Used
from diptych.core.run_settings import RunSettings
from diptych.core.spending import (
    denied_call,
    ends_phase_1,
    is_counted,
    used_by,
    warnings,
)
from diptych.core.state import Phase, Run, updated

PRICES = Prices(Decimal("0.25"), Decimal("2.00"))


def echo(n):
    return f'{{"tool": "echo", "arguments": {{"n": {n}}}}}'


def limited(prices=None, on_max_steps="stop", **limits):
    settings = RunSettings(9, on_max_steps, budget=Budget(**limits), prices=prices)
    return started("echo", settings=settings)[0]


STEP = Usage(90, 10)


def step(run, n, usage=STEP, text="ok"):
    """A step with one call; gives the run and what it commands."""
    run, commands = feed(run, Replied(echo(n), usage))
    [call] = made(commands)
    return feed(run, Called(call, run.step), returned(call.id, f"{text} {n}"))


def asks(commands):
    return any(isinstance(command, AskModel) for command in commands)


def test_no_model_is_asked_once_the_tokens_are_used():
    run, commands = step(limited(tokens=200), 1)
    assert asks(commands)
    run, commands = step(run, 2)
    assert commands == ()
    assert run.end == Failed(
        "budget_exhausted", "the run has used up budget.tokens: 200 of 200 tokens"
    )


def test_an_answer_that_was_asked_for_is_given_however_long_it_is():
    run, _ = feed(limited(tokens=100), Replied("{}", Usage(50, 1)))
    run, _ = feed(run, Replied("Hello!", Usage(50, 5_000)))
    assert run.draft.text == "Hello!"
    assert run.phase is Phase.DONE
    assert not isinstance(run.end, Failed)


def test_money_is_counted_by_prices_and_is_nothing_without_them():
    run, commands = step(limited(prices=PRICES, cost=Decimal("0.0000425")), 1)
    assert commands == ()
    assert "budget.cost: 0.0000425 of 0.0000425 in money" in run.end.message
    assert asks(step(limited(cost=Decimal("0.0000425")), 1)[1])


def test_steps_end_phase_1():
    run, commands = step(limited(steps=1), 1)
    assert commands == ()
    assert run.end.code == "budget_exhausted"
    run, (ask,) = step(limited(steps=1, on_max_steps="answer"), 1)
    assert ask.purpose == "answer"


def test_the_last_model_call_is_kept_for_the_answer_where_one_is_wanted():
    run, (ask,) = step(limited(model_calls=2, on_max_steps="answer"), 1)
    assert ask.purpose == "answer"
    run, _ = feed(run, Replied("so it is"))
    assert run.draft.text == "so it is"


def test_a_tool_call_for_which_nothing_is_left_is_denied():
    run, _ = step(limited(tool_calls=2), 1)
    run, commands = feed(run, Replied(f"[{echo(2)}, {echo(3)}]"))
    first, second = commands
    assert denied_call(run, first, []) is None
    outcome = denied_call(run, second, [first])
    assert outcome.result.error == "denied"
    assert outcome.result.text.startswith("denied: budget.toolCalls is used up (2 of 2 tool calls)")


READ = ToolCall("call_1_1", "result__read", {"result": "r1"})


def test_delegations_and_reading_on_in_a_text_are_no_tool_calls():
    assert is_counted(ToolCall("c", "echo", {}))
    assert not is_counted(READ)
    assert not is_counted(Delegation("c", "a", "do it"))
    used_up = updated(limited(tool_calls=1), tool_calls=1)
    assert denied_call(used_up, MakeCall(READ, 1), []) is None
    assert denied_call(used_up, MakeCall(ToolCall("c", "echo", {}), 1), []) is not None
    nothing_limits_it = updated(limited(tokens=5), tool_calls=1)
    assert denied_call(nothing_limits_it, MakeCall(ToolCall("c", "echo", {}), 1), []) is None


def test_what_children_used_counts_where_a_run_ends():
    below = Used(model_calls=1, tool_calls=1, steps=1)
    run = updated(limited(steps=2), step=1, delegated=below)
    assert ends_phase_1(run) == "steps"
    assert ends_phase_1(updated(run, delegated=Used())) is None
    run = updated(limited(model_calls=3, on_max_steps="answer"), step=1, model_calls=1)
    assert ends_phase_1(updated(run, delegated=below)) == "model_calls"
    assert ends_phase_1(run) is None
    call = MakeCall(ToolCall("c", "echo", {}), 1)
    run = updated(limited(tool_calls=3), tool_calls=1, delegated=below)
    assert denied_call(run, call, []) is None
    assert denied_call(run, call, [call]) is not None


@pytest.mark.parametrize(
    ("limits", "before", "after"),
    [
        ({"tokens": 100}, {}, {"usage": Usage(80, 0)}),
        ({"tokens": 100}, {}, {"delegated": Used(tokens=80)}),
        ({"tool_calls": 5}, {"tool_calls": 3}, {"tool_calls": 4}),
        ({"steps": 5}, {"step": 3}, {"step": 4}),
    ],
    ids=["tokens", "what a child used", "tool calls", "steps"],
)
def test_a_warning_comes_whatever_alone_has_changed(limits, before, after):
    run = updated(limited(**limits), **before)
    assert warnings(run, updated(run, **after)) == list(limits)


def test_a_request_can_only_tighten():
    settings = RunSettings(budget=Budget(tokens=100, tool_calls=5))
    asked = RunRequested("hi", budget=Budget(tokens=500, tool_calls=2, steps=3))
    run, _ = feed(Run(), asked, Offered(catalog("echo"), "SYSTEM", settings))
    assert run.budget == Budget(tokens=100, tool_calls=2, steps=3)


USAGES = st.lists(st.builds(Usage, st.integers(0, 400), st.integers(0, 400)), max_size=8)


@settings(deadline=None)
@given(USAGES, st.integers(1, 2_000), st.integers(1, 9))
def test_a_run_goes_over_by_one_call_at_most_and_replays_to_the_same(usages, tokens, calls):
    run, events = limited(tokens=tokens, model_calls=calls), []
    start = run
    for n, usage in enumerate(usages):
        if run.phase is Phase.DONE:
            break
        before = used_by(run)
        assert before.tokens < tokens
        assert before.model_calls < calls
        run, commands = feed(run, Replied(echo(n), usage))
        events.append(Replied(echo(n), usage))
        for call in made(commands):
            more = [Called(call, run.step), returned(call.id, f"ok {n}")]
            run, commands = feed(run, *more)
            events += more
        assert used_by(run).tokens <= before.tokens + usage.prompt_tokens + usage.completion_tokens
    again = start
    for event in events:
        again, _ = feed(again, event)
    assert used_by(again) == used_by(run)
    assert again.end == run.end
