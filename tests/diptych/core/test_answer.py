"""The answer: what is told, what is asked for again, and how often (loop.md §2, §7)."""

import pytest
from support.doubles import catalog
from support.feeding import feed, made, started

from diptych.core.catalog import Catalog
from diptych.core.commands import Warn
from diptych.core.context_window import ContextWindow
from diptych.core.events import (
    Aborted,
    Answered,
    AnswerReset,
    Completed,
    Failed,
    MessageQueued,
    Offered,
    OwnerChanged,
    Replied,
    RunRequested,
    Streamed,
)
from diptych.core.messages import Message, NativeCall, Usage
from diptych.core.model_request import request_weight
from diptych.core.prompt import NOT_AN_ACTION, cut_answer
from diptych.core.reducer import advance
from diptych.core.run_settings import RunSettings
from diptych.core.state import Phase, Run

ADD = '{"tool": "add", "arguments": {}}'
CITY = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
DIRECT = RunSettings(answer_mode="direct")


def answering(**fields):
    run, _ = started(with_offers=catalog("add", agents=["peer"]), **fields)
    return feed(run, Replied("{}"))[0]


def asked_with(schema, **settings):
    offered = Offered(catalog("add"), "", RunSettings(**settings))
    run, _ = feed(Run(), RunRequested("hi", output_schema=schema), offered, Replied("{}"))
    return run


@pytest.mark.parametrize(
    "held",
    [
        *("{}", "<>", "[]", '{"tool": null}', "```json\n{}\n```", f"```text\n{ADD}\n```"),
        *('{"thought": "all is known", "tool": null}', '```json\n{"tool": null, "why": "x"}\n```'),
        *(f"```json\n{ADD}\n```", '{"tool": "add", "argu', '{"tool": "add", "arguments": 1}'),
    ],
)
def test_an_action_is_not_told_but_asked_for_once_more(held):
    run, (ask,) = feed(answering(), Replied(held))
    assert (ask.purpose, ask.request.index) == ("answer", 2)
    assert NOT_AN_ACTION in ask.request.messages[-1].content
    assert run.draft.text == ""
    again, _ = feed(run, Streamed("It is 3."), Replied(""))
    assert again.end == Completed("stop", Usage())
    failed, _ = feed(run, Replied(held))
    assert isinstance(failed.end, Failed)
    assert failed.end.code == "answer_not_given"


@pytest.mark.parametrize(
    "held",
    [
        '{"city": "Bonn"}',
        '{"tool": "hammer", "arguments": {}}',
        f"Write `{ADD}` to add.",
        f"So:\n```yaml\na: {ADD}\n```",
        "```python\nadd(1)\n```",
    ],
)
def test_json_that_is_data_is_an_answer(held):
    run, _ = feed(answering(), Replied(held))
    assert run.end == Completed("stop", Usage())
    assert run.messages[-1] == Message("assistant", held)


def test_a_call_after_prose_voids_the_text_that_was_told():
    run, _ = feed(answering(), Streamed("I will add.\n"), Streamed(ADD))
    run, commands = advance(run, Replied(""))
    assert [c.event for c in commands] == [AnswerReset(from_seq=4, attempt=2)]
    run, (ask,) = advance(run, commands[0].event)
    assert (ask.purpose, ask.recorded, run.draft.text) == ("answer", "", "")
    run, _ = feed(run, Streamed("3"), Replied(""))
    assert run.messages[-1].content == "3"


@pytest.mark.parametrize("end", [Aborted("enough"), Failed("model_stalled", "silence")])
@pytest.mark.parametrize("settings", [RunSettings(), DIRECT])
def test_what_an_answer_had_told_when_it_was_cut_off_stays_in_the_conversation(end, settings):
    events = (Replied("{}"),) if settings != DIRECT else ()
    begun = started(with_offers=catalog("add"), settings=settings)[0]
    run, _ = feed(begun, *events, Streamed("It is"), MessageQueued("And?", "m"), end)
    cut = Message("assistant", cut_answer("It is"))
    assert run.messages == (Message("user", "hi"), cut, Message("user", "And?"))
    _, (ask,) = feed(Run(history=run.messages[:2]), RunRequested("Go on."), Offered(Catalog(), ""))
    assert ask.request.messages[1] == cut


def test_only_what_was_told_and_is_not_void_is_kept_of_an_answer_that_ended_early():
    told = feed(answering(), Streamed("It is"))[0]
    void, _ = feed(told, AnswerReset(4, 2), Aborted("enough"))
    silent, _ = feed(answering(), Aborted("enough"))
    assert void.messages == silent.messages == (Message("user", "hi"),)
    whole, _ = advance(told, Answered("It is"))
    whole, _ = advance(whole, Aborted("enough"))
    assert whole.messages[1:] == (Message("assistant", "It is"),)


def test_a_run_that_is_resumed_answers_anew():
    cut = Message("user", "Who?"), Message("assistant", cut_answer("It is"))
    offered = Offered(Catalog(), "")
    _, (ask,) = feed(Run(history=cut), RunRequested("", resumes="run-1"), offered)
    assert ask.request.messages == (Message("user", "Who?"),)


@pytest.mark.parametrize("reply", [ADD, " ", "{}"])
def test_a_message_to_an_answer_that_is_none_brings_its_own_steps(reply):
    """As one to any other answer; the steps of the turn may all be used up."""
    settings = RunSettings(max_steps=1, max_retries=0)
    run, _ = started(with_offers=catalog("add"), settings=settings)
    run, (_, ask) = feed(run, Replied('{"tool": "nope"}'))  # one error too many
    assert (run.step, ask.purpose) == (1, "answer")
    run, (ask,) = feed(run, MessageQueued("and?", "m"), Replied(reply))
    assert (run.phase, ask.purpose, run.step_limit) == (Phase.ACT, "actions", 2)


# Structured output


def test_an_answer_is_asked_for_by_its_schema_and_told_when_it_fits():
    run, (ask,) = feed(
        Run(), RunRequested("hi", output_schema=CITY), Offered(catalog(), ""), Replied("{}")
    )
    assert ask.request.output_schema == CITY
    assert '"required": ["city"]' in ask.request.messages[-1].content
    run, commands = advance(run, Replied('```json\n{"city": "Bonn"}\n```'))
    text = '{"city": "Bonn"}'
    assert [c.event for c in commands] == [Streamed(text), Answered(text, is_json=True)]
    assert feed(run, *(c.event for c in commands))[0].end == Completed("stop", Usage())


def test_a_misfit_goes_back_to_the_model_and_is_the_failure_s_text_in_the_end():
    run, (ask,) = feed(asked_with(CITY, answer_repairs=1), Replied('{"city": 1}'))
    *_, said, told = ask.request.messages
    assert said == Message("assistant", '{"city": 1}')
    assert "answer.city: 1 is not of type 'string'" in told.content
    failed, _ = feed(run, Replied("Bonn"))
    assert (failed.end.code, failed.end.text) == ("invalid_output", "Bonn")
    good, _ = feed(run, Replied('{"city": "Bonn"}'))
    assert good.messages[-1].content == '{"city": "Bonn"}'


def test_a_cut_answer_that_does_not_fit_is_told_so():
    _, (ask,) = feed(asked_with(CITY), Replied('{"city": "Bo', finish_reason="length"))
    assert "it was cut off by the length limit" in ask.request.messages[-1].content


@pytest.mark.parametrize(
    ("schema", "reply", "is_told"),
    [
        pytest.param({"properties": {}}, "{}", True, id="a no-op that fits a schema is data"),
        pytest.param({}, "{}", False, id="where any object would do it is a no-op"),
        pytest.param({}, ADD, False, id="a call"),
        pytest.param({}, '{"a": 1}', True, id="any object"),
    ],
)
def test_an_action_is_no_structured_answer(schema, reply, is_told):
    run, _ = feed(asked_with(schema), Replied(reply))
    assert (run.end is not None) is is_told
    assert run.draft.repairs == 0


def test_a_long_answer_is_repaired_within_the_window():
    window = ContextWindow(limit=2_000, is_measured=True)
    offered = Offered(catalog("add"), "", window=window)
    run, _ = feed(Run(), RunRequested("hi", output_schema=CITY), offered, Replied("{}"))
    run, (ask,) = feed(run, Replied("many words " * 1_000))
    assert run.end is None
    assert request_weight(ask.request) < 2_000
    assert ask.request.messages[-2].content.endswith("many words ")


# Direct


def direct(**fields):
    return started(with_offers=catalog("add"), settings=DIRECT, **fields)


def test_prose_in_phase_one_is_the_answer_in_direct_mode():
    run, (ask,) = direct()
    assert ask.purpose == "either"
    run, commands = feed(run, Streamed("It "))
    assert (run.phase, commands) == (Phase.ANSWER, ())
    run, _ = feed(run, Streamed("is 3."), Replied(""))
    assert run.end == Completed("stop", Usage())
    assert run.messages == (Message("user", "hi"), Message("assistant", "It is 3."))
    assert run.model_calls == 1


def test_a_call_after_the_direct_answer_is_not_run():
    run, _ = feed(direct()[0], Streamed("It is 3.\n"))
    run, commands = advance(run, Replied(ADD))
    assert isinstance(commands[0], Warn)
    assert commands[1].event == Answered("It is 3.\n")
    assert run.messages == (Message("user", "hi"),)


def test_a_new_owner_compares_a_direct_answer_and_may_find_an_action():
    run, _ = feed(direct()[0], Streamed("It "))
    run, (ask,) = feed(run, OwnerChanged())
    assert (ask.purpose, ask.recorded) == ("either", "It ")
    run, commands = feed(run, AnswerReset(3, 2))
    assert (run.phase, commands) == (Phase.ANSWER, ())
    run, commands = feed(run, Replied(ADD))
    assert [call.name for call in made(commands)] == ["add"]


def test_native_calls_after_a_preamble_void_it_and_are_acted_on():
    run, _ = feed(direct()[0], Streamed("Let me look."))
    run, commands = advance(run, Replied("", calls=(NativeCall("1", "add", "{}"),)))
    assert commands[0].event == AnswerReset(3, 2)
    assert run.draft.text == ""
    assert run.phase is not Phase.DONE
    run, _ = advance(run, commands[0].event)
    assert run.draft.attempts == 2
