"""The record of runs as a table for people: one event a row, under its run.

Not here: where it comes from (`remote`), or a run while it happens (`show`).
"""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from diptych.cli.output.screen import Part, printable
from diptych.cli.output.wording import call_text, clock_time, one_line
from diptych.loop.codec import Record

_STYLES: Mapping[str, str] = {
    "user_message": "bold",
    "agent_response": "green",
    "tool_call": "cyan",
    "delegation_request": "cyan",
    "tool_error": "red",
    "delegation_error": "red",
    "action_error": "yellow",
    "failed": "red",
    "aborted": "red",
    "max_steps": "red",
}
_LEAST_TEXT, _WIDE = 30, 1_000


def print_rows(records: Iterable[Record]) -> None:
    """Write the table to stdout: for a terminal's width, or in full lines for a pipe."""
    console = Console(highlight=False, markup=False, emoji=False)
    width = console.width if console.is_terminal else _WIDE
    for parts in event_rows(records, width):
        console.print(Text.assemble(*parts), soft_wrap=True)


def event_rows(records: Iterable[Record], width: int) -> Iterable[tuple[Part, ...]]:
    """Give the lines of the table, as parts of a line each of at most `width` characters."""
    run_id = None
    for record in records:
        if record.run_id != run_id:
            run_id = record.run_id
            yield ((f"{run_id}  {record.session_id}", "dim"),)
        yield _row(record, width)


def _row(record: Record, width: int) -> tuple[Part, ...]:
    seq, when = f"{record.seq:>4}  ", clock_time(record.timestamp)
    kind = f"  {record.event_type:<20}"
    room = max(width - len(seq) - len(when) - len(kind) - 1, _LEAST_TEXT)
    style = _STYLES.get(record.event_type, "")
    return (seq, "dim"), (when, "dim"), (kind, style), printable(one_line(_text(record), room))


def _text(record: Record) -> str:
    match record.event_type:
        case "tool_call" | "delegation_request":
            return call_text(record)
        case "action_error":
            return f"{record.metadata.get('error_type')}: {record.content}"
        case "failed":
            return f"{record.metadata.get('code')}: {record.content}"
        case _:
            return record.content if isinstance(record.content, str) else ""
