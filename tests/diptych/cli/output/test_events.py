"""Recorded events as a table for people."""

from support.run_records import Writer

from diptych.cli.output.events import event_rows


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
