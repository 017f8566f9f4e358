"""Recorded events as a table for people: one row per event, below a row that names its run."""

from collections.abc import Iterable, Mapping

from rich.text import Text

from diptych.cli.output.screen import Line, StyledStream, printable
from diptych.cli.output.wording import call_text, clock_time, decision_text, one_line
from diptych.core.codec import Record

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
    "compacted": "yellow",
    "failed": "red",
    "aborted": "red",
    "max_steps": "red",
}
_MIN_TEXT_WIDTH, _PIPE_WIDTH = 30, 1_000


def print_event_table(records: Iterable[Record]) -> None:
    """Write the table to stdout: at a terminal's width, or with long rows to a pipe."""
    console = StyledStream()
    width = console.width if console.is_terminal else _PIPE_WIDTH
    for row in event_rows(records, width):
        console.print(Text.assemble(*row), soft_wrap=True)


def event_rows(records: Iterable[Record], width: int) -> Iterable[Line]:
    """Give the rows of the table, each of at most `width` characters."""
    run_id = None
    for record in records:
        if record.run_id != run_id:
            run_id = record.run_id
            yield ((f"{run_id}  {record.session_id}", "dim"),)
        yield _event_row(record, width)


def _event_row(record: Record, width: int) -> Line:
    seq, time = f"{record.seq:>4}  ", clock_time(record.timestamp)
    event_type = f"  {record.event_type:<20}"
    room = max(width - len(seq) - len(time) - len(event_type) - 1, _MIN_TEXT_WIDTH)
    style = _STYLES.get(record.event_type, "")
    text = printable(one_line(_text(record), room))
    return (seq, "dim"), (time, "dim"), (event_type, style), text


def _text(record: Record) -> str:
    match record.event_type:
        case "approval_requested":
            why = record.metadata.get("reason")
            return call_text(record) + (f" · {why}" if why else "")
        case "approval_decided":
            return decision_text(record)
        case "tool_call" | "delegation_request":
            return call_text(record)
        case "user_message" if "resumes" in record.metadata and not record.content:
            return f"goes on with {record.metadata['resumes']}"
        case "action_error":
            return f"{record.metadata.get('error_type')}: {record.content}"
        case "offered" if "action_format" in record.metadata:
            return f"{record.metadata['action_format']} tool calls · {record.content}"
        case "action_format":
            return f"{record.content}: {record.metadata.get('reason')}"
        case "failed":
            return f"{record.metadata.get('code')}: {record.content}"
        case _:
            return record.content if isinstance(record.content, str) else ""
