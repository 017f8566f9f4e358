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
    AnswerReset,
    Called,
    Completed,
    Failed,
    MessageQueued,
    Offered,
    OwnerChanged,
    Replied,
    ReplyRejected,
    RunRequested,
    StepsExhausted,
    Streamed,
)
from diptych.core.messages import Delegation, Message, Result, ToolCall, Usage
from diptych.core.model_request import ModelRequest
from diptych.core.prompt import action_rules, final_prompt
from diptych.core.reducer import advance, closing_events, replay
from diptych.core.run_settings import RunSettings
from diptych.core.state import Phase, Run, conversation

ECHO = '{"tool": "echo", "arguments": {"text": "a"}}'
BAD = '{"tool": "nope"}'
X = ToolCall("call_1_1", "x")
MORE = MessageQueued("and in French", "m-1")


def test_a_run_asks_the_model_when_it_is_offered_its_tools():
    run, commands = started("echo")
    said = f"hi\n\n{action_rules(catalog('echo'))}"
    assert commands == (
        AskModel(ModelRequest((Message("system", "SYSTEM"), Message("user", said))), "actions"),
    )
    assert run.pending == commands


def test_history_comes_before_the_message_and_the_caller_s_system_after_the_prompt():
    history = (Message("user", "u1"), Message("assistant", "a1"))
    offered = Offered(Catalog(), "SYSTEM")
    _, (ask,) = feed(Run(history=history), RunRequested("hi", system="Rhyme."), offered)
    assert ask.request.messages[0].content.startswith("SYSTEM\n\n")
    assert ask.request.messages[0].content.endswith("Rhyme.")
    assert ask.request.messages[1:] == (*history, Message("user", "hi"))


@pytest.mark.parametrize("reply", ["{}", "<>", "I know it.", "", "[]", "<think>{}</think>{}"])
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


def test_what_the_model_says_of_its_answer_is_passed_through():
    run, _ = feed(started()[0], Replied("{}"), Streamed("Hel"), Replied("", finish_reason="length"))
    assert run.end == Completed("length", Usage())


def test_an_end_of_the_answer_that_callers_do_not_know_is_a_stop():
    run, _ = feed(started()[0], Replied("{}"), Streamed("Hi"), Replied("", finish_reason="eos"))
    assert run.end == Completed("stop", Usage())


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
    assert warned == Warn('the reply\'s "output" is ignored: it is no part of a call')
    assert make.call.arguments == {"text": "a"}
    assert run.pending == (make,)


def test_without_ids_a_reference_is_sent_as_the_text_it_is():
    _, commands = feed(
        started("echo")[0], Replied('{"tool": "echo", "arguments": {"text": "${HOME}"}}')
    )
    assert made(commands)[0].arguments == {"text": "${HOME}"}


def test_delegations_are_made_side_by_side():
    task = Delegation("call_1_1", "writer", "Write.")
    reply = '[{"agent": "writer", "task": "Write."}, {"agent": "writer", "task": "More."}]'
    run, _ = started(with_offers=catalog(agents=["writer"]))
    _, commands = feed(run, Replied(reply))
    assert made(commands) == [task, replace(task, id="call_1_2", task="More.")]


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


def test_a_reference_that_leads_nowhere_is_that_call_s_error():
    reply = '[{"id": "a", "tool": "x"}, {"id": "b", "tool": "x", "arguments": {"n": "${a.no}"}}]'
    run, _ = feed(started("x")[0], Replied(reply))
    run, _ = feed(run, returned("call_1_1", "7", value={"yes": 7}))
    assert run.results[1].error == "invalid_arguments"


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


def test_a_call_that_cannot_be_made_takes_no_other_call_s_place():
    away = Unavailable("server", "calc", "connection refused")
    run, _ = started(
        with_offers=Catalog((tool("x"),), unavailable=(away,)),
        settings=RunSettings(max_parallel_calls=1),
    )
    _, commands = advance(run, Replied('[{"tool": "add"}, {"tool": "x"}]'))
    assert [c.id for c in made(commands)] == ["call_1_2"]


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


def test_an_agent_that_is_away_is_unavailable():
    away = Unavailable("agent", "researcher", "connection refused")
    run, _ = started(with_offers=Catalog(unavailable=(away,)))
    run, _ = feed(run, Replied('{"agent": "researcher", "task": "look"}'))
    assert run.results == (Result("call_1_1", "unavailable: researcher", error="unavailable"),)


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


def test_a_good_action_resets_the_count_of_errors():
    run, _ = feed(started("echo", settings=RunSettings(max_steps=9))[0], *[Replied(BAD)] * 3)
    run, _ = feed(run, Replied(ECHO), returned("call_4_1"), *[Replied(BAD)] * 3)
    assert run.phase is Phase.ACT
    assert run.errors == 3


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_reply_cut_off_by_the_length_limit_or_a_filter_never_runs_its_calls(reason):
    _, commands = feed(started("echo")[0], Replied(ECHO, finish_reason=reason))
    assert made(commands) == []
    assert "error_type: truncated" in commands[0].request.messages[-1].content


def test_at_max_steps_the_answer_is_the_literal_text():
    run, _ = started("echo", settings=RunSettings(max_steps=2))
    run, _ = feed(run, Replied(ECHO), returned("call_1_1"), Replied(ECHO), returned("call_2_1"))
    assert isinstance(run.end, StepsExhausted)
    assert run.end.text == "Reached maximum reasoning steps (2)"
    assert conversation(run)[-1] == Message("assistant", run.end.text)
    assert run.model_calls == 2


def test_at_max_steps_the_end_holds_the_beginning_of_each_result():
    run, _ = started("echo", settings=RunSettings(max_steps=1))
    run, _ = feed(run, Replied(ECHO), returned("call_1_1", "x" * 501, value={"x": 1}))
    assert run.end.results == (Result("call_1_1", "x" * 500),)


def test_max_steps_can_lead_to_an_answer_instead():
    run, _ = started("echo", settings=RunSettings(max_steps=1, on_max_steps="answer"))
    run, (ask,) = feed(run, Replied(ECHO), returned("call_1_1"))
    assert ask.purpose == "answer"


def test_a_step_whose_results_are_all_terminal_ends_phase_one():
    with_offers = Catalog((tool("done", terminal=True), tool("x")))
    run, _ = started(with_offers=with_offers)
    _, (ask,) = feed(run, Replied('{"tool": "done"}'), returned("call_1_1"))
    assert ask.purpose == "answer"
    mixed, _ = feed(run, Replied('[{"tool": "done"}, {"tool": "x"}]'))
    mixed, (ask,) = feed(mixed, returned("call_1_1"), returned("call_1_2"))
    assert ask.purpose == "actions"


def test_a_terminal_call_that_fails_does_not_end_phase_one():
    run, _ = started(with_offers=Catalog((tool("done", terminal=True),)))
    _, (ask,) = feed(run, Replied('{"tool": "done"}'), returned("call_1_1", error="failed"))
    assert ask.purpose == "actions"


def test_the_answer_s_text_begins_at_its_first_piece_until_it_is_reset():
    run, _ = feed(started()[0], Replied("{}"), Streamed("Hel"), Streamed("lo"))
    assert (run.draft.text, run.draft.seq, run.seq) == ("Hello", 4, 5)
    run, _ = feed(run, AnswerReset(4, 2))
    assert (run.draft.text, run.draft.seq, run.draft.attempts) == ("", 0, 2)
    run, _ = feed(run, Streamed("Good"))
    assert run.draft.seq == 7


def test_a_blank_answer_is_asked_for_once_more_and_then_fails():
    run, commands = feed(started()[0], Replied("{}"), Replied(""))
    assert commands[0].purpose == "answer"
    assert commands[0].request.index == 2
    run, _ = feed(run, Replied(""))
    assert run.end == Failed("empty_answer", "the model gave no answer, twice")


def test_a_blank_answer_is_not_asked_for_again_before_a_message_that_has_come():
    _, (ask,) = feed(started()[0], Replied("{}"), Streamed(" "), MORE, Replied(""))
    assert ask.purpose == "actions"
    assert MORE.message in ask.request.messages[-1].content


def test_the_next_turn_s_answer_begins_anew():
    run, _ = feed(started()[0], Replied("{}"), Streamed(" "), Replied(""), AnswerReset(4, 2))
    run, _ = feed(run, Streamed("Hello"), MORE, Replied(""), Replied("{}"))
    assert (run.draft.text, run.draft.attempts) == ("", 1)
    run, (ask,) = feed(run, Streamed(" "), Replied(""))
    assert ask.purpose == "answer", "the first blank answer of this turn"
    run, _ = feed(run, Streamed("Bonjour"), Replied(""))
    assert run.end == Completed("stop", Usage())


def test_in_the_next_turn_a_new_owner_goes_on_after_that_turn_s_text():
    run, _ = feed(started()[0], Replied("{}"), Streamed(" "), Replied(""), Streamed("Hello"))
    run, _ = feed(run, MORE, Replied(""), Replied("{}"), Streamed("Bonjour"))
    _, (ask,) = feed(run, OwnerChanged())
    assert ask.recorded == "Bonjour"


@pytest.mark.parametrize("finish_reason", ["content_filter", "length"])
def test_a_blank_answer_that_the_model_explains_is_passed_through(finish_reason):
    run, _ = feed(started()[0], Replied("{}"), Replied("", finish_reason=finish_reason))
    assert run.end == Completed(finish_reason, Usage())


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


def test_a_run_that_ends_before_its_turn_has_said_nothing():
    run, _ = feed(Run(), RunRequested("hi"), Aborted("enough"))
    assert conversation(run) == ()


def test_an_abort_interrupts_a_delegation_under_its_agent_s_name():
    run, commands = feed(
        started(with_offers=catalog(agents=["writer"]))[0],
        Replied('{"agent": "writer", "task": "Write."}'),
    )
    run, _ = feed(run, Called(made(commands)[0], 1, "context-1"))
    first, _ = closing_events(run, Aborted("enough"))
    assert (first.kind, first.target, first.result.error) == ("agent", "writer", "interrupted")


def test_nothing_happens_to_a_run_that_is_over():
    run, _ = advance(started()[0], Aborted("enough"))
    with pytest.raises(LoopError, match="the run is over"):
        advance(run, Replied("{}"))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Streamed("x"), id="text before phase 2"),
        pytest.param(returned("call_9_9"), id="a result nobody waits for"),
        pytest.param(Answered("x"), id="an answer out of nowhere"),
        pytest.param(Called(ToolCall("call_9_9", "x"), 1), id="a call nobody asked for"),
        pytest.param(RunRequested("again"), id="a second message"),
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


def test_a_replayed_run_wants_done_what_was_not_done():
    written = [
        RunRequested("hi"),
        Offered(catalog("echo"), "SYSTEM"),
        Replied(ECHO),
        Called(ToolCall("call_1_1", "echo", {"text": "a"}), 1),
    ]
    run = replay(written)
    assert run.started == ("call_1_1",)
    assert made(run.pending)[0].id == "call_1_1"
    assert (
        replay([*written, returned("call_1_1")]).pending[0] == feed(run, returned("call_1_1"))[1][0]
    )


def test_what_the_loop_writes_is_outstanding_until_it_is_written():
    run, (command,) = advance(started("echo")[0], Replied(BAD))
    assert isinstance(command.event, ReplyRejected)
    assert run.pending == (command,)
    run, _ = advance(run, command.event)
    assert command not in run.pending
