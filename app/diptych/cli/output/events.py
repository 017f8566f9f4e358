"""Recorded events as a table for people, and a run as JSON Lines for programs."""

import sys
from collections.abc import Iterable, Mapping

import orjson

from diptych.cli.output.screen import Line, print_report, stdout_width
from diptych.cli.output.timeline import CONNECTION_NOTICES
from diptych.cli.output.wording import clock_time, event_text, one_line
from diptych.core.codec import Record
from diptych.http.views import event_view, notice_view
from diptych.ports import Item, Notice

_STYLES: Mapping[str, str] = {
    "user_message": "bold",
    "agent_response": "green",
    "tool_call": "cyan",
    "delegation_request": "cyan",
    "tool_error": "red",
    "delegation_error": "red",
    "action_error": "yellow",
    "action_format": "yellow",
    "approval_requested": "magenta",
    "approval_decided": "magenta",
    "input_requested": "magenta",
    "input_received": "magenta",
    "compacted": "yellow",
    "failed": "red",
    "aborted": "red",
    "max_steps": "red",
}
_MIN_TEXT_WIDTH = 30


def print_event_table(records: Iterable[Record]) -> None:
    """Write the table to stdout: at a terminal's width, or with long rows to a pipe."""
    print_report(event_rows(records, stdout_width()))


def event_rows(records: Iterable[Record], width: int) -> Iterable[Line]:
    """Yield a row for each event, below one that names its run; each of at most `width`."""
    run_id = None
    for record in records:
        if record.run_id != run_id:
            run_id = record.run_id
            yield ((f"{run_id}  {record.session_id}", "dim"),)
        yield _event_row(record, width)


def _event_row(record: Record, width: int) -> Line:
    seq, time = f"{record.seq:>4}  ", clock_time(record.timestamp)
    kind = f"  {record.event_type:<20}"
    room = max(width - len(seq) - len(time) - len(kind) - 1, _MIN_TEXT_WIDTH)
    text = event_text(record.event_type, record.content, record.metadata)
    style = _STYLES.get(record.event_type, "")
    return (seq, "dim"), (time, "dim"), (kind, style), one_line(text, room)


class JsonLines:
    """One JSON object per line, as `/v1/runs/{id}/events` gives it; fulfils `Renderer`.

    The command line's own notices go to stderr: they are no events of the run.
    """

    def render(self, item: Item) -> None:
        if isinstance(item, Notice) and (text := CONNECTION_NOTICES.get(item.type)):
            sys.stderr.write(f"! {text.format_map(item.fields)}\n")
            return
        view = notice_view(item) if isinstance(item, Notice) else event_view(item)
        sys.stdout.write(orjson.dumps(view).decode() + "\n")
        sys.stdout.flush()

    def refresh(self) -> None:
        """Do nothing: lines do not change with time."""
