"""The measurement of prompts: its sets, how an answer is judged, and that the table is of today."""

import functools
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from bench.models import measure, runs, selection, stories
from bench.models.questions import KINDS, Question, chosen

from diptych.core.codec import Record

ROOT = Path(__file__).parents[3]
LEAST = {"plain": 40, "results": 21, "calls": 10, "delegations": 7, "histories": 10}


def test_the_table_in_the_docs_was_measured_with_the_prompts_of_today():
    page = (ROOT / "docs" / "prompts.md").read_text()
    assert f"Measured with prompts `{measure.digest()}`." in page, (
        "what the model is sent has changed: measure it (`PARTS=prompts make models`), and put the "
        "table into docs/prompts.md"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_question_is_in_two_sets(kind):
    sets = [{question.ask for question in chosen(kind, name)} for name in ("tune", "judge")]
    assert [*map(len, sets)] == [LEAST[kind]] * 2
    blind = {question.ask for question in chosen(kind, "blind")}
    assert len(blind) == (40 if kind == "plain" else 0)
    assert len(set().union(*sets, blind)) == 2 * LEAST[kind] + len(blind)


def test_everyday_questions_are_as_easy_as_those_of_the_aim_and_half_are_never_tuned_on():
    known = yaml.safe_load(selection.KNOWN.read_text())
    tuned_on, judged_by = ({q.ask for q in chosen("plain", name)} for name in selection.EVERYDAY)
    assert len(tuned_on) == len(judged_by) == 40
    others = {q.ask for name in ("tune", "judge", "blind") for q in chosen("plain", name)}
    assert tuned_on.isdisjoint(judged_by | others)
    assert judged_by.isdisjoint(others)
    for asks in (tuned_on, judged_by):
        right = sum(known[ask] for ask in asks) / selection.SAMPLES
        assert abs(right - 35) <= 0.5


@pytest.mark.parametrize(
    ("name", "alone", "ours", "missed"),
    [
        ("everyday", 34, 35, []),
        ("everyday", 34, 34, [("plain", 35)]),
        ("everyday", 36, 35, [("plain", 36)]),
        ("blind", 26, 26, []),
        ("blind", 26, 25, [("plain", 26)]),
        ("blind", None, 3, []),  # the model alone was not asked
    ],
)
def test_no_fewer_may_be_right_than_the_model_alone_answers(name, alone, ours, missed):
    rows = [measure._Row(measure.WAYS[-1].name, measure.OWN, {"plain": ours}, {})]
    if alone is not None:
        rows.append(measure._Row(measure.WAYS[0].name, measure.OWN, {"plain": alone}, {}))
    assert measure._missed(rows, name) == missed


@pytest.mark.parametrize(
    ("right", "first", "answer", "is_right"),
    [
        (["4", "four"], [], "It is 4.", True),
        (["4", "four"], [], "It is FOUR", True),
        (["4"], [], "It is 40, 14, 4.5 or -4", False),
        (["1020"], [], "There are 1,020 minutes.", True),
        (["ant"], ["ant", "elephant"], "An elephant is bigger than an ant.", False),
        (["elephant"], ["ant", "elephant"], "An elephant is bigger than an ant.", True),
        (["Paris"], [], "comparison", False),
    ],
)
def test_an_answer_is_right_if_it_names_the_word(right, first, answer, is_right):
    question = Question("?", "", {"right": right, "first": first})
    assert question.is_right(answer) is is_right


@functools.cache
def all_requests():
    modes = "json, separate", "json, direct, schema", "native, separate"
    return [r for story in stories.stories(modes) for r in stories.requests_of(story)]


def test_every_request_of_the_stories_ends_with_the_user_and_never_repeats_a_role():
    found = all_requests()
    in_text = [r for r in found if not any(m.calls or m.role == "tool" for m in r.messages)]
    assert len(in_text) > 500
    for request in in_text:
        roles = [m.role for m in request.messages if m.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_native_stories_hold_what_templates_refuse():
    found = all_requests()
    roles = [[message.role for message in request.messages] for request in found]
    assert any(("tool", "user") in pairwise(of_request) for of_request in roles)
    assert any(len(m.calls) > 1 for request in found for m in request.messages)
    assert any(request.tools for request in found)
    assert any(request.output_schema is not None for request in found)


def test_200_runs_and_50_with_a_schema_are_shared_among_all_ways():
    shares = runs.shares(40)
    in_schema = sum(len(messages) for way, messages in shares if way.has_schema)
    assert in_schema * len(runs.TEMPLATES) == 50
    others = [message for way, messages in shares if not way.has_schema for message in messages]
    assert len(set(others)) * len(runs.TEMPLATES) == len(others) * len(runs.TEMPLATES) == 200
    assert all(len(messages) >= 5 for _, messages in shares)


def record(seq, event_type, content=None, **metadata):
    return Record("r", "s", seq, event_type, 0.0, content, metadata)


def test_a_record_as_it_must_be_has_nothing_wrong():
    whole = [
        record(1, "user_message", "hi"),
        record(2, "tool_call", {}, call_id="c"),
        record(3, "tool_result", "1", call_id="c"),
        record(4, "agent_response", "One."),
        record(5, "completed"),
    ]
    assert not runs.wrong_with(whole)
    assert runs.wrong_with(whole[:4]) == ["its terminal events are []"]


@pytest.mark.parametrize(
    ("events", "wrong"),
    [
        (
            [("tool_call", None, {"call_id": "c"}), ("failed", "x", {"code": "x"})],
            "without a resul",
        ),
        ([("agent_response", '{"tool": "echo"}', {}), ("completed", None, {})], "is an action"),
        ([("agent_response", "{}", {}), ("completed", None, {})], "is an action"),
        (
            [("agent_response", '{"tool": "echo", "arg', {}), ("completed", None, {})],
            "is an action",
        ),
        ([("failed", "x", {"code": "internal_error"})], "failed inside"),
        ([("model_reply", "x", {})] * 7 + [("completed", None, {})], "7 model calls"),
    ],
)
def test_a_record_that_is_not_as_it_must_be_is_named(events, wrong):
    records = [
        record(n, name, content, **more) for n, (name, content, more) in enumerate(events, 1)
    ]
    assert any(wrong in problem for problem in runs.wrong_with(records))


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"right": ["1000"]}, "It is 1,000 metres, as everybody knows."),
        ({"right": ["5"]}, "It is 5.5, or 50, or 5 of them in all."),
        ({"right": ["New York"]}, "New England? No: New York, where it stands."),
        ({"right": ["yes"], "first": ["yes", "no"]}, "Nobody: no, it is not, yes it is not."),
        ({"right": ["yes"], "first": ["yes", "no"]}, "Yesterday: yes, it is, and no more of it."),
        ({"right": ["-3"]}, "It was \u22123 degrees, and then 7 degrees."),
    ],
)
def test_a_reply_is_read_until_nothing_that_follows_changes_its_judgment(fields, answer):
    question = Question("?", "plain", fields)
    settled = [end for end in range(len(answer) + 1) if question.is_settled(answer[:end])]
    assert settled
    assert settled == [*range(settled[0], len(answer) + 1)]
    for end in settled:
        assert question.is_right(answer[:end]) == question.is_right(answer)


def test_what_names_nothing_that_decides_is_read_to_its_end():
    question = Question("?", "plain", {"right": ["5"]})
    assert not question.is_settled("It is 15, and there is no more to be said of it.")
