"""Extracts a run's answers, one for each turn, from its records; or why there is none.

A run that received messages while it answered has several turns.
"""

from collections.abc import Iterable
from typing import cast

from diptych.core.codec import TERMINAL, Record
from diptych.ports import Item

TURN = "\n\n"
"""Separates the answers of two turns when joined."""


def collect(records: list[Record], item: Item, after: int = 0) -> None:
    """Add an item to a run's records after a seq; a `reset` notice removes void records."""
    if isinstance(item, Record):
        records.append(item)
    elif item.type == "reset":
        del records[max(0, cast("int", item.fields["last_seq"]) - after) :]


def whole_answer(records: Iterable[Record]) -> str | None:
    """Return a run's answers, including the text at `max_steps`; None if there are none."""
    answers = [_text(r) for r in records if r.event_type in {"agent_response", "max_steps"}]
    return TURN.join(answers) if answers else None


def answers_so_far(records: Iterable[Record]) -> list[str]:
    """Return the answer of each turn; the last one may be incomplete."""
    answers: list[str] = []
    text = ""
    for record in records:
        match record.event_type:
            case "text":
                text += _text(record)
            case "answer_reset":
                text = ""
            case "agent_response":
                answers.append(_text(record))
                text = ""
    return [*answers, text] if text else answers


def end_code(record: Record) -> str:
    """Return why a run has no answer: a failure's code, `aborted` or `max_steps`; else ""."""
    if record.event_type == "failed":
        return str(record.metadata.get("code", "failed"))
    return record.event_type if record.event_type in TERMINAL - {"completed"} else ""


def _text(record: Record) -> str:
    return record.content if isinstance(record.content, str) else ""
