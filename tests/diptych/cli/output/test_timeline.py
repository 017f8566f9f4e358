"""The view of a run while it happens: what a person reads, line by line."""

import io
from collections.abc import Sequence

import pytest
from support.run_records import PROGRESS, Writer

from diptych.cli.output.screen import Screen
from diptych.cli.output.timeline import RECONNECTING, RETRYING_START, Timeline
from diptych.ports import Item, Notice


def streamed(call_id: str, target: str, text: str) -> Notice:
    fields = {"call_id": call_id, "target": target, "content": text}
    return Notice("delegation_progress", fields)


def rendered(items: Sequence[Item], *, question: bool = False) -> tuple[list[str], str]:
    """Give the lines of progress, and the answer."""
    out, err = io.StringIO(), io.StringIO()
    timeline = Timeline(Screen(out, err), question=question)
    for item in items:
        timeline.render(item)
        timeline.refresh()
    return err.getvalue().splitlines(), out.getvalue()


def test_a_call_and_its_result_are_two_lines() -> None:
    w = Writer()
    lines, _ = rendered([PROGRESS, w.call("1"), w.result("1", "4")])
    assert lines == ["● step 1/5  add(n=1)", "  ✓ 4  10 ms"]


def test_the_answer_is_streamed_and_shown_once() -> None:
    w = Writer()
    items = [w("user_message", "Hi"), w("text", "Hel"), w("text", "lo")]
    lines, answer = rendered([*items, w("agent_response", "Hello"), w.completed()])
    assert answer == "Hello\n"
    assert lines == ["✓ done in 40 ms · tokens: 7 in, 3 out"]


def test_the_question_is_shown_to_whoever_did_not_ask_it() -> None:
    question = Writer()("user_message", "Hi")
    assert rendered([question], question=True)[0] == ["❯ Hi"]  # noqa: RUF001 - the sign
    assert rendered([question])[0] == []


def test_a_message_that_came_meanwhile_is_shown_and_so_is_the_answer_to_it() -> None:
    w = Writer()
    items = [w("user_message", "Hi"), w("text", "Hello."), w("user_message", "and in French")]
    items += [w("agent_response", "Hello."), w("model_reply", "{}"), w("text", "Bonjour.")]
    lines, answer = rendered([*items, w("agent_response", "Bonjour."), w.completed()])
    assert lines[0] == "❯ and in French"  # noqa: RUF001 - the sign
    assert answer == "Hello.\nBonjour.\n"


def test_calls_side_by_side_are_told_apart_by_their_labels() -> None:
    w = Writer()
    calls = [w.call("1", label="a"), w.call("2", label="b")]
    lines, _ = rendered([*calls, w.result("2", "two"), w.result("1", "one")])
    assert lines == [
        "● step 1  a = add(n=1)",
        "          b = add(n=2)",
        "  ✓ b  two  10 ms",
        "  ✓ a  one  30 ms",
    ]


def test_what_a_sub_agent_streams_is_not_shown_twice() -> None:
    w = Writer()
    items: list[Item] = [
        w.asked("1", "eve"),
        streamed("1", "eve", "It is "),
        streamed("1", "eve", "here."),
    ]
    lines, _ = rendered([*items, w.answered("1", "eve", "It is here.")])
    assert lines == ["● step 1  → eve: Find it", "  │ It is here.", "  ✓ eve  10 ms"]


def test_of_two_sub_agents_that_stream_one_is_quoted_and_the_other_shown_at_its_end() -> None:
    w = Writer()
    items: list[Item] = [
        w.asked("1", "eve"),
        w.asked("2", "bob"),
        streamed("1", "eve", "I "),
    ]
    items += [
        streamed("2", "bob", "You "),
        streamed("1", "eve", "know."),
        w.answered("1", "eve", ""),
    ]
    items += [streamed("2", "bob", "guess."), w.answered("2", "bob", "You guess.")]
    lines, _ = rendered(items)
    assert lines[2:] == ["  │ eve: I know.", "  ✓ eve  20 ms", "  ✓ bob  You guess.  20 ms"]


def test_native_calls_and_their_refusal_are_told() -> None:
    w = Writer()
    native = w("offered", "abc", action_format="native")
    lines, _ = rendered([native, w.completed()])
    assert "native tool calls · " in lines[-1]
    lines, _ = rendered([native, w("action_format", "json", reason="no tools"), w.completed()])
    assert lines[0] == "! calls are asked for as JSON from here on: no tools"
    assert "native" not in lines[-1]


def test_an_answer_that_starts_over_is_announced() -> None:
    w = Writer()
    lines, answer = rendered(
        [
            w("text", "One two"),
            w("owner_changed", lost_tail=False),
            w("answer_reset", from_seq=1, attempt=2),
            w("text", "Un deux"),
            w("agent_response", "Un deux"),
            w.completed(),
        ]
    )
    assert lines[:2] == [
        "! another process has taken the run over",
        "! the answer starts over; what was said of it does not hold",
    ]
    assert answer == "One two\nUn deux\n"


LIMIT = "Reached maximum reasoning steps (5)"


@pytest.mark.parametrize(
    ("item", "line", "answer"),
    [
        (Notice("format_warning", {"message": "not run"}), "! not run", ""),
        (Notice("model_wait", {"message": "m is slow {}"}), "! m is slow {}", ""),
        (Notice("tool_progress", {"target": "add", "message": "1 of 2"}), "  … add: 1 of 2", ""),
        (Notice(RECONNECTING, {"message": "it broke"}), "! it broke; picking the run up again", ""),
        (Notice(RETRYING_START, {"message": "it broke"}), "! it broke; asking again", ""),
        (
            Notice("handed_over", {"run_id": "run-1", "last_seq": 3}),
            "! the agent's pod is leaving, and hands the run over",
            "",
        ),
        (
            Notice("reset", {"epoch": "e", "last_seq": 3}),
            "! the agent's store has lost the end of this run; it goes on from event 3",
            "",
        ),
        (
            Writer()("action_error", "there is no tool x", error_type="unknown_tool", said=""),
            "! a reply could not be used (unknown_tool): there is no tool x",
            "",
        ),
        (
            Writer()("failed", "nobody answers", code="model_unreachable"),
            "✗ failed (model_unreachable) after 0 ms: nobody answers",
            "",
        ),
        (Writer()("aborted", "by request"), "✗ aborted after 0 ms: by request", ""),
        (
            Writer()("max_steps", LIMIT, results=[], usage={}),
            "✗ stopped at the limit of steps, after 0 ms",
            f"{LIMIT}\n",
        ),
        (
            Writer().completed(finish_reason="length"),
            "! the answer is not whole: the model's length limit cut it off",
            "",
        ),
        (Writer().result("2", "skipped: a failed", failed=True), "  ✗ add  skipped: a failed", ""),
        (Writer()("news"), None, ""),
        (Notice("news", {}), None, ""),
    ],
)
def test_what_happens_to_a_run_is_a_line(item: Item, line: str | None, answer: str) -> None:
    lines, told = rendered([item])
    assert (lines[:1], told) == ([line] if line else [], answer)


def test_a_long_wait_is_shown_with_what_is_waited_for() -> None:
    err, now = io.StringIO(), [0.0]
    model = "m at http://models"
    timeline = Timeline(Screen(io.StringIO(), err), model=model, now=lambda: now[0])

    def after(seconds: float, *items: Item) -> None:
        for item in items:
            timeline.render(item)
        now[0] += seconds
        timeline.refresh()

    w = Writer()
    after(2.9, w("user_message", "Hi"))
    assert err.getvalue() == ""
    after(0.1)
    after(5)
    after(3.1, w("model_reply", "{}"), w.call("1"))
    after(3.1, w.result("1", "4"))
    waits = [line for line in err.getvalue().splitlines() if line.startswith("…")]
    assert waits == [
        "… waiting for the first reply of m at http://models",
        "… waiting for the call of add",
        "… waiting for reply 2 of m at http://models",
    ]
