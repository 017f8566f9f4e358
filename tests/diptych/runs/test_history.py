"""The checker of histories: each thing that it looks for, in the smallest history that has it."""

import pytest
from support.history import problems

ASKED = {"t": 0, "actor": "c", "kind": "accepted", "run": "r", "session": "s", "text": "Q"}
ACCEPTED = {**ASKED, "seconds": 10, "canary": "bird"}


def record(seq, event_type, content=None, *, t=1, run="r"):
    about = {"run": run, "session": "s", "seq": seq}
    kind = {"t": t, "actor": "log", "kind": "record"}
    return {**kind, **about, "event_type": event_type, "content": content}


def told(seq, event_type, content=None):
    return {**record(seq, event_type, content), "actor": "reader", "kind": "reader"}


def note(kind, **fields):
    return {"t": 2, "actor": "x", "kind": kind, **fields}


LOG = [record(1, "user_message", "Q"), record(2, "offered"), record(3, "completed")]
TOLD = [told(1, "user_message", "Q"), told(2, "offered"), told(3, "completed")]
READ = {"t": 3, "actor": "reader", "kind": "reader_ended", "run": "r"}
STARTED = note("tool_started", key="k", repeatable=False)
CLAIMED = note("claimed", session="s", token="1")
WRITE = note("write_accepted", run="r", session="s", token="1", seqs=[1])
ASKED_ONCE = note("asked_once", key="k", body="b", text="Q", run="r")
TOLD_ONCE = note("told_once", key="k", answer="A")
LOST = note("lost", run="r", keys=["k"], end=(3, "completed"))
OTHER = {**ACCEPTED, "run": "q", "session": "z", "canary": "cat"}


def test_a_history_in_which_all_is_well_has_no_problems():
    said = note("conversation", session="s", said=["Q"])
    refused = {**ASKED_ONCE, "body": "c", "text": "P", "run": ""}
    repeats = [ASKED_ONCE, ASKED_ONCE, refused, TOLD_ONCE, TOLD_ONCE]
    assert (
        problems([CLAIMED, WRITE, ACCEPTED, STARTED, *TOLD, READ, *LOG, said, *repeats], 15) == []
    )


@pytest.mark.parametrize(
    ("sign", "history"),
    [
        pytest.param("G1", [ACCEPTED], id="no log"),
        pytest.param("G1", [ACCEPTED, *LOG[:2]], id="no end"),
        pytest.param("G1", [ACCEPTED, *LOG, record(4, "failed")], id="two ends"),
        pytest.param("G1", [ACCEPTED, *LOG, record(4, "text", "a")], id="more after the end"),
        pytest.param("G1", [ACCEPTED, *LOG[:2], record(3, "completed", t=26)], id="too late"),
        pytest.param("G2", [LOG[0], LOG[2]], id="a gap in the log"),
        pytest.param("G2", [LOG[0], LOG[0]], id="a record twice"),
        pytest.param("G2", [*LOG, TOLD[0], TOLD[2], READ], id="a reader misses one"),
        pytest.param("G2", [*LOG, *TOLD, TOLD[2], READ], id="a reader is told twice"),
        pytest.param("G2", [*LOG, *TOLD[:2], READ], id="a reader misses the end"),
        pytest.param(
            "G2", [*LOG, told(1, "user_message", "P"), *TOLD[1:], READ], id="a reader hears else"
        ),
        pytest.param(
            "G2",
            [*LOG, *TOLD, note("reset", run="r", last_seq=2) | {"actor": "reader"}, READ],
            id="a reader is left behind by a reset",
        ),
        pytest.param(
            "G2",
            [record(1, "text", "a"), record(2, "answer_reset"), record(3, "agent_response", "a")],
            id="an answer that is void",
        ),
        pytest.param(
            "G2",
            [
                *(ACCEPTED, note("answered", text="Q", answer="a b")),
                *(record(1, "text", "a"), record(2, "agent_response", "a")),
            ],
            id="an answer that is cut",
        ),
        pytest.param("G3", [STARTED, STARTED], id="a call twice"),
        pytest.param("G4", [CLAIMED, {**CLAIMED, "token": "2"}, WRITE], id="a stale write"),
        pytest.param("G5", [ASKED_ONCE, {**ASKED_ONCE, "run": "q"}], id="two runs of one key"),
        pytest.param(
            "G5",
            [ASKED_ONCE, *LOG, record(1, "user_message", "Q", run="q")],
            id="a run of a key that nobody was told of",
        ),
        pytest.param(
            "G5", [ASKED_ONCE, {**ASKED_ONCE, "body": "c"}], id="another body under the same key"
        ),
        pytest.param(
            "G5", [ASKED_ONCE, {**ASKED_ONCE, "run": ""}], id="the same body that is refused"
        ),
        pytest.param("G5", [TOLD_ONCE, {**TOLD_ONCE, "answer": "B"}], id="two answers to one key"),
        pytest.param("G3", [STARTED, LOST, STARTED, STARTED], id="a call thrice, and lost once"),
        pytest.param(
            "G3", [LOST | {"t": 9}, STARTED, STARTED], id="a call twice before it is lost"
        ),
        pytest.param(
            "G2", [*LOG[:2], *TOLD[:2], told(3, "failed"), READ, LOST], id="an end that nobody lost"
        ),
        pytest.param("I8", [OTHER, record(1, "text", "a cat")], id="a secret of another session"),
        pytest.param(
            "the conversation",
            [ACCEPTED, *LOG, note("conversation", session="s", said=["Q", "Q"])],
            id="a question said twice",
        ),
        pytest.param(
            "the conversation",
            [ACCEPTED, *LOG, note("conversation", session="s", said=[])],
            id="a question not said",
        ),
    ],
)
def test_what_is_wrong_is_found(sign, history):
    assert any(problem.startswith(sign) for problem in problems(history, 15))


def test_trouble_puts_off_when_a_run_must_have_ended():
    late = [ACCEPTED, *LOG[:2], record(3, "completed", t=120)]
    assert problems([*late, note("trouble", what="away", until=100)], 15) == []
    assert problems([*late, note("trouble", what="away", until=90)], 15) != []


def test_a_run_s_time_begins_when_those_before_it_have_ended():
    first = [ACCEPTED, record(1, "offered"), record(2, "completed", t=24)]
    second = [
        {**ACCEPTED, "run": "q"},
        record(1, "offered", run="q"),
        record(2, "completed", t=48, run="q"),
    ]
    assert problems([*first, *second], 15) == []


def test_a_run_that_several_were_told_of_counts_once():
    again = {**ACCEPTED, "actor": "d"}
    said = note("conversation", session="s", said=["Q"])
    assert problems([ACCEPTED, again, *LOG, said], 15) == []


def test_of_what_the_store_has_lost_nobody_knows():
    assert problems([STARTED, LOST, STARTED], 15) == []
    went_on = [*LOG[:2], record(3, "owner_changed"), record(4, "completed")]
    assert problems([*went_on, *TOLD, READ, LOST], 15) == []


def test_what_may_be_repeated_may_be_repeated():
    start = {**STARTED, "repeatable": True}
    assert problems([start, start], 15) == []
