"""What of a request begins a run, and which requests are refused."""

import pytest

from diptych.core import prompt
from diptych.core.errors import InvalidRequest
from diptych.core.events import Origin, RunRequested
from diptych.core.messages import Message, NativeCall
from diptych.runs.request import RunRequest, continues_answer, requested_session, run_requested

U1, U2, U3 = (Message("user", f"u{n}") for n in (1, 2, 3))
CALLED = Message("assistant", "", (NativeCall("c1", "City", "{}"),))
RESULT = Message("tool", "no such city", call_id="c1")
A1, A2 = (Message("assistant", f"a{n}") for n in (1, 2))
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def asked(*messages, is_known=False, **rest):
    return run_requested(RunRequest(messages, **rest), is_known=is_known)


@pytest.mark.parametrize("session_id", [None, "s", "A-z.0_9", "x" * 128])
def test_a_session_may_be_named(session_id):
    assert requested_session(RunRequest((U1,), session_id=session_id)) == session_id


@pytest.mark.parametrize("session_id", ["", "a b", "a/b", "s\n", "ü", "x" * 129])
def test_a_session_has_a_plain_name(session_id):
    with pytest.raises(InvalidRequest, match="1 to 128") as refused:
        requested_session(RunRequest((U1,), session_id=session_id))
    assert refused.value.param == "session_id"


def test_a_request_has_a_user_s_message():
    with pytest.raises(InvalidRequest, match="must contain a user message") as refused:
        asked()
    assert refused.value.param == "messages"


def test_what_was_said_before_begins_a_new_session():
    assert asked(U1, A1, U2, system="Rhyme.") == RunRequested("u2", (U1, A1), "Rhyme.")


@pytest.mark.parametrize(
    ("messages", "earlier"),
    [
        pytest.param((U1, A1, U2, A2, U3), (), id="the last one alone"),
        pytest.param((U1, A1, U2, U3), (U2,), id="several"),
        pytest.param((U2, U3), (U2,), id="no answer among them"),
    ],
)
def test_of_a_known_session_only_what_follows_the_last_answer_is_new(messages, earlier):
    assert asked(*messages, is_known=True) == RunRequested("u3", earlier)


@pytest.mark.parametrize(
    ("messages", "known", "last_answer", "earlier"),
    [
        pytest.param((U1, A1), False, None, (U1, A1), id="in a new session"),
        pytest.param((U1, A1, U2, A2), False, None, (U1, A1, U2, A2), id="with a history"),
        pytest.param((U1, A1), True, "a1", (), id="the answer that is on record"),
        pytest.param((U1, A1, U2, A2), True, "a1", (U2, A2), id="the beginning of the next answer"),
        pytest.param((U2, A2), True, "a1", (U2, A2), id="in a known session, without its history"),
    ],
)
def test_an_assistant_s_last_message_is_continued(messages, known, last_answer, earlier):
    request = RunRequest(messages)
    assert continues_answer(request)
    found = run_requested(request, is_known=known, last_answer=last_answer)
    assert found == RunRequested(prompt.CONTINUE_ANSWER, earlier)


def test_an_answer_of_a_given_form_continues_nothing():
    with pytest.raises(InvalidRequest, match="one of the two") as refused:
        asked(U1, A1, output_schema={})
    assert refused.value.param == "messages"


def test_a_tool_s_last_message_is_gone_on_from():
    assert asked(U1, CALLED, RESULT) == RunRequested(
        prompt.CONTINUE_WITH_RESULTS, (U1, CALLED, RESULT)
    )


def test_in_a_known_session_results_of_its_last_answer_are_texts():
    found = asked(U1, CALLED, RESULT, U2, is_known=True)
    assert found == RunRequested("u2", (Message("user", "Result of tool City:\nno such city"),))


def test_what_a_request_asks_for_is_recorded_with_it():
    found = asked(U1, parameters={"seed": 7}, max_steps=2, output_schema={})
    assert (found.parameters, found.max_steps, found.output_schema) == ({"seed": 7}, 2, {})


def test_all_text_is_made_fit_for_the_record():
    half, whole = "a\ud800", "a\ufffd"
    found = asked(Message("user", half), Message("user", half), system=half)
    assert found == RunRequested(whole, (Message("user", whole),), whole)


@pytest.mark.parametrize(
    ("traceparent", "kept"),
    [
        pytest.param(TRACEPARENT, TRACEPARENT, id="one of W3C's"),
        pytest.param(None, None, id="none"),
        pytest.param(f"{TRACEPARENT}-x", None, id="one with more behind"),
        pytest.param("rubbish", None, id="rubbish"),
    ],
)
def test_a_trace_goes_on_if_it_is_one(traceparent, kept):
    origin = Origin(("http://a",), traceparent, 5.0)
    assert asked(U1, origin=origin).origin == Origin(("http://a",), kept, 5.0)
