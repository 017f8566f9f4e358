"""The reducer: what a run becomes by each event. No clock, no tasks."""

from dataclasses import replace

import pytest
from support.doubles import catalog, tool
from support.feeding import feed, made, returned, started

from diptych.core.catalog import Catalog, Unavailable
from diptych.core.commands import AskModel, Warn
from diptych.core.errors import LoopError
from diptych.core.events import (
    Aborted,
    Answered,
    Called,
    Completed,
    Failed,
    Replied,
    StepsExhausted,
    Streamed,
)
from diptych.core.messages import Message, Result, ToolCall, Usage
from diptych.core.model_request import ModelRequest
from diptych.core.prompt import action_rules, final_prompt
from diptych.core.reducer import advance, closing_events
from diptych.core.run_settings import RunSettings
from diptych.core.state import Phase, Run, conversation, updated

ECHO = '{"tool": "echo", "arguments": {"text": "a"}}'
BAD = '{"tool": "nope"}'
X = ToolCall("call_1_1", "x")


def test_a_run_asks_the_model_when_it_is_offered_its_tools():
    run, commands = started("echo")
    said = f"hi\n\n{action_rules(catalog('echo'))}"
    assert commands == (
        AskModel(ModelRequest((Message("system", "SYSTEM"), Message("user", said))), "actions"),
    )
    assert run.pending == commands


@pytest.mark.parametrize("reply", ["{}", "I know it.", ""])
def test_a_reply_without_an_action_starts_phase_two_and_is_not_kept(reply):
    run, (ask,) = feed(started("echo")[0], Replied(reply))
    assert run.phase is Phase.ANSWER
    assert ask.purpose == "answer"
    assert ask.request.index == 1
    assert ask.request.messages[-1] == Message("user", f"hi\n\n{final_prompt()}")
    assert run.messages == (Message("user", "hi"),)


def test_the_answer_is_recorded_and_ends_the_run():
    run, _ = feed(started()[0], Replied("{}", Usage(5, 1)), Streamed("Hel"), Streamed("lo"))
    run, _ = feed(run, Replied("", Usage(7, 2)))
    assert run.end == Completed("stop", Usage(12, 3))
    assert run.end.usage.prompt_tokens + run.end.usage.completion_tokens == 15
    assert conversation(run) == (Message("user", "hi"), Message("assistant", "Hello"))


def test_a_call_is_made_and_its_result_given_back():
    run, commands = feed(started("echo")[0], Replied(ECHO))
    (call,) = made(commands)
    assert call == ToolCall("call_1_1", "echo", {"text": "a"})
    run, (ask,) = feed(run, Called(call, 1), returned("call_1_1", "AAA"))
    assert run.phase is Phase.ACT
    assert ask.request.messages[-2] == Message("assistant", ECHO)
    assert ask.request.messages[-1].content.startswith("[Step 1/5] Result of tool echo:\nAAA\n\n")


def test_what_a_reply_says_beside_its_calls_is_ignored_and_the_caller_is_warned():
    run, (warned, make) = feed(started("echo")[0], Replied(f'{{"calls": [{ECHO}], "output": "x"}}'))
    assert warned == Warn('ignored unknown keys in the reply: "output"')
    assert make.call.arguments == {"text": "a"}
    assert run.pending == (make,)


def test_results_reach_the_model_in_the_order_it_asked():
    run, commands = feed(started("a", "b")[0], Replied('[{"tool": "a"}, {"tool": "b"}]'))
    assert [c.name for c in made(commands)] == ["a", "b"]
    run, commands = feed(run, returned("call_1_2", "second"))
    assert commands == ()
    _, (ask,) = feed(run, returned("call_1_1", "first"))
    told = ask.request.messages[-1].content
    assert told.index("first") < told.index("second")


def test_a_call_waits_for_the_one_it_refers_to_and_gets_its_value():
    reply = '[{"id": "a", "tool": "x"}, {"id": "b", "tool": "y", "arguments": {"n": "${a.value}"}}]'
    run, commands = feed(started("x", "y")[0], Replied(reply))
    assert [c.label for c in made(commands)] == ["a"]
    _, commands = feed(run, returned("call_1_1", "7", value={"value": 7}))
    assert made(commands)[0].arguments == {"n": 7}


def test_a_dependent_of_a_failed_call_is_skipped_and_so_is_its_own():
    reply = (
        '[{"id": "a", "tool": "x"}, {"id": "b", "tool": "x", "after": ["a"]},'
        ' {"id": "c", "tool": "x", "after": ["b"]}]'
    )
    run, _ = feed(started("x")[0], Replied(reply))
    run, (ask,) = feed(run, returned("call_1_1", "boom", error="failed"))
    assert [r.text for r in run.results] == ["boom", "skipped: a failed", "skipped: b failed"]
    assert [r.error for r in run.results] == ["failed", "skipped", "skipped"]
    assert "skipped: b failed" in ask.request.messages[-1].content


@pytest.mark.parametrize("value", ["seven", "${n}"])
def test_filled_arguments_are_validated_again(value):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    with_offers = Catalog((tool("x"), tool("y", schema=schema)))
    reply = '[{"id": "a", "tool": "x"}, {"id": "b", "tool": "y", "arguments": {"n": "${a}"}}]'
    run, _ = feed(started(with_offers=with_offers)[0], Replied(reply))
    run, _ = feed(run, returned("call_1_1", value, value=value))
    assert run.results[1].error == "invalid_arguments"


def test_no_more_calls_run_at_once_than_the_terms_allow():
    calls = [f'{{"tool": "x", "arguments": {{"n": {n}}}}}' for n in range(5)]
    reply = "[" + ", ".join(calls) + "]"
    run, commands = feed(
        started("x", settings=RunSettings(max_parallel_calls=2))[0], Replied(reply)
    )
    assert len(made(commands)) == 2
    run, commands = feed(run, returned("call_1_2"))
    assert [c.id for c in made(commands)] == ["call_1_3"]


def test_a_sequential_call_never_overlaps_another_of_its_server():
    pay, look = tool("pay", sequential=True), tool("look")
    other = tool("other", server="elsewhere")
    again = '{"tool": "pay", "arguments": {"again": true}}'
    reply = f'[{{"tool": "look"}}, {{"tool": "pay"}}, {{"tool": "other"}}, {again}]'
    with_offers = Catalog((pay, look, other))
    run, commands = feed(started(with_offers=with_offers)[0], Replied(reply))
    assert [c.name for c in made(commands)] == ["look", "other"]
    run, commands = feed(run, returned("call_1_1"))
    assert [c.id for c in made(commands)] == ["call_1_2"]
    run, commands = feed(run, returned("call_1_2"))
    assert [c.id for c in made(commands)] == ["call_1_4"]
    _, commands = feed(
        started(with_offers=with_offers)[0], Replied('[{"tool": "pay"}, {"tool": "look"}]')
    )
    assert [c.name for c in made(commands)] == ["pay"]


def test_while_nobody_knows_its_tools_any_unknown_name_is_blamed_on_the_server_that_is_away():
    away = Unavailable("server", "calc", "connection refused")
    run, _ = started(with_offers=Catalog((tool("x"),), unavailable=(away,)))
    run, (ask,) = feed(run, Replied('{"tool": "add"}'))
    text = "unavailable: calc; tools available: x"
    assert run.results == (Result("call_1_1", text, error="unavailable"),)
    assert run.started == ()
    assert "unavailable: calc" in ask.request.messages[-1].content


def test_an_error_is_told_to_the_model_with_what_it_said():
    run, (ask,) = feed(started("echo")[0], Replied(BAD))
    assert run.step == 1
    assert ask.request.messages[-2] == Message("assistant", BAD)
    told = ask.request.messages[-1].content
    assert told.startswith("[Step 1/5] ")
    assert "error_type: unknown_tool" in told
    assert "echo" in told
    assert BAD not in told


def test_after_max_retries_errors_in_a_row_the_next_one_leads_to_phase_two_with_a_warning():
    run, commands = started("echo")
    for _ in range(3):
        run, commands = feed(run, Replied(BAD))
        assert run.phase is Phase.ACT
    run, commands = feed(run, Replied(BAD))
    assert run.phase is Phase.ANSWER
    assert isinstance(commands[0], Warn)
    assert commands[1].purpose == "answer"


def test_at_max_steps_the_answer_is_the_literal_text():
    run, _ = started("echo", settings=RunSettings(max_steps=2))
    run, _ = feed(run, Replied(ECHO), returned("call_1_1"), Replied(ECHO), returned("call_2_1"))
    assert isinstance(run.end, StepsExhausted)
    assert run.end.text == "Reached maximum reasoning steps (2)"
    assert conversation(run)[-1] == Message("assistant", run.end.text)
    assert run.model_calls == 2


def test_a_step_whose_results_are_all_terminal_ends_phase_one():
    with_offers = Catalog((tool("done", terminal=True), tool("x")))
    run, _ = started(with_offers=with_offers)
    _, (ask,) = feed(run, Replied('{"tool": "done"}'), returned("call_1_1"))
    assert ask.purpose == "answer"
    mixed, _ = feed(run, Replied('[{"tool": "done"}, {"tool": "x"}]'))
    mixed, (ask,) = feed(mixed, returned("call_1_1"), returned("call_1_2"))
    assert ask.purpose == "actions"


def test_a_blank_answer_is_asked_for_once_more_and_then_fails():
    run, commands = feed(started()[0], Replied("{}"), Replied(""))
    assert commands[0].purpose == "answer"
    assert commands[0].request.index == 2
    run, _ = feed(run, Replied(""))
    assert run.end == Failed("empty_answer", "the model's answer was empty twice")


def test_an_abort_interrupts_what_was_sent_and_skips_what_was_not():
    reply = '[{"id": "a", "tool": "x"}, {"id": "b", "tool": "x", "after": ["a"]}]'
    run, commands = feed(started("x")[0], Replied(reply))
    run, _ = feed(run, Called(made(commands)[0], 1))
    events = list(closing_events(run, Aborted("enough")))
    assert [e.result.error for e in events[:-1]] == ["interrupted", "skipped"]
    for event in events:
        run, _ = advance(run, event)
    assert run.end == Aborted("enough")
    assert run.pending == ()
    assert "interrupted: enough" in conversation(run)[-1].content


def test_nothing_happens_to_a_run_that_is_over():
    run, _ = advance(started()[0], Aborted("enough"))
    with pytest.raises(LoopError, match="the run has ended"):
        advance(run, Replied("{}"))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(returned("call_9_9"), id="a result nobody waits for"),
        pytest.param(Answered("x"), id="an answer out of nowhere"),
        pytest.param(Called(ToolCall("call_9_9", "x"), 1), id="a call nobody asked for"),
    ],
)
def test_an_event_out_of_place_is_a_bug(event):
    with pytest.raises(LoopError):
        advance(started("x")[0], event)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([Called(X, 1), Called(X, 1)], id="a call that was sent already"),
        pytest.param([Called(replace(X, id="call_1_2"), 1)], id="a call that waits for another"),
        pytest.param([returned("call_1_1")] * 2, id="a result that has come already"),
    ],
)
def test_a_call_is_sent_once_at_its_time_and_has_one_result(events):
    reply = '[{"id": "a", "tool": "x"}, {"tool": "x", "after": ["a"]}]'
    run, _ = feed(started("x")[0], Replied(reply))
    with pytest.raises(LoopError):
        feed(run, *events)


def test_a_run_is_not_changed_by_a_name_that_it_has_no_field_of():
    with pytest.raises(TypeError, match="a run has no stepp"):
        updated(Run(), stepp=1)
