"""What of a request begins a run, and which requests are refused."""

import pytest

from diptych.errors import InvalidRequest
from diptych.loop.events import Asked, Origin
from diptych.loop.messages import Message
from diptych.runtime.request import RunRequest, first_event, requested_session

U1, U2, U3 = (Message("user", f"u{n}") for n in (1, 2, 3))
A1, A2 = (Message("assistant", f"a{n}") for n in (1, 2))
TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def asked(*messages, is_known=False, **rest):
    return first_event(RunRequest(messages, **rest), is_known=is_known)


@pytest.mark.parametrize("session_id", [None, "s", "A-z.0_9", "x" * 128])
def test_a_session_may_be_named(session_id):
    assert requested_session(RunRequest((U1,), session_id=session_id)) == session_id


@pytest.mark.parametrize("session_id", ["", "a b", "a/b", "s\n", "ü", "x" * 129])
def test_a_session_has_a_plain_name(session_id):
    with pytest.raises(InvalidRequest, match="1 to 128") as refused:
        requested_session(RunRequest((U1,), session_id=session_id))
    assert refused.value.param == "session_id"


@pytest.mark.parametrize("messages", [(), (U1, A1)], ids=["none", "the assistant's"])
def test_the_last_message_is_a_user_s(messages):
    with pytest.raises(InvalidRequest, match="the last message") as refused:
        asked(*messages)
    assert refused.value.param == "messages"


def test_what_was_said_before_begins_a_new_session():
    assert asked(U1, A1, U2, system="Rhyme.") == Asked("u2", (U1, A1), "Rhyme.")


@pytest.mark.parametrize(
    ("messages", "earlier"),
    [
        pytest.param((U1, A1, U2, A2, U3), (), id="the last one alone"),
        pytest.param((U1, A1, U2, U3), (U2,), id="several"),
        pytest.param((U2, U3), (U2,), id="no answer among them"),
    ],
)
def test_of_a_known_session_only_what_follows_the_last_answer_is_new(messages, earlier):
    assert asked(*messages, is_known=True) == Asked("u3", earlier)


def test_all_text_is_made_fit_for_the_record():
    half, whole = "a\ud800", "a\ufffd"
    found = asked(Message("user", half), Message("user", half), system=half)
    assert found == Asked(whole, (Message("user", whole),), whole)


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
