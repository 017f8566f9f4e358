"""Recorded events as a table for people, and a run as JSON Lines for programs."""

import orjson
import pytest
from support.run_records import PROGRESS, Writer

from diptych.cli.output.events import JsonLines, event_rows
from diptych.cli.output.timeline import RECONNECTING
from diptych.ports import Notice


def test_each_event_is_a_row_below_its_run() -> None:
    w = Writer()
    records = [w("user_message", "a\nb"), w.call("1"), w("failed", "no", code="x")]
    rows = ["".join(p if isinstance(p, str) else p[0] for p in r) for r in event_rows(records, 80)]
    head, *events = rows
    assert head == "run-1  session-1"
    assert [event[20:] for event in events] == [
        "user_message        a b",
        "tool_call           add(n=1)",
        "failed              x: no",
    ]


def test_the_table_says_how_the_model_is_asked_for_calls() -> None:
    w = Writer()
    records = [
        w("offered", "abc"),
        w("offered", "abc", action_format="native"),
        w("action_format", "json", reason="no tools"),
    ]
    _, *rows = event_rows(records, 80)
    assert [row[-1] for row in rows] == ["abc", "native tool calls · abc", "json: no tools"]


def test_a_run_as_json_has_a_line_for_each_of_its_events_and_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = JsonLines()
    for item in (PROGRESS, Writer()("text", "ü\n"), Notice(RECONNECTING, {"message": "it broke"})):
        view.render(item)
    shown = capsys.readouterr()
    first, second = map(orjson.loads, shown.out.splitlines())
    assert first == {"type": "progress", **PROGRESS.fields}
    assert (second["event_type"], second["content"]) == ("text", "ü\n")
    assert second["timestamp"] == "1970-01-01T00:01:40.010000Z"
    assert shown.err == "! it broke; picking the run up again\n"
