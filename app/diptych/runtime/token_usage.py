"""The tokens that a run and its children have used, by its records: for views of runs.

Not here: what counts for budgets (`recorded_use`), a run while it executes (`loop.spending`).
"""

from collections.abc import Iterable
from typing import Any

from diptych.loop.codec import TERMINAL, Record
from diptych.loop.delegation_rows import read_usage
from diptych.loop.messages import Usage

_OF_MODEL = frozenset({"model_reply", "compacted"})
_OF_CHILDREN = frozenset({"delegation_response", "delegation_error"})


def spent(record: Record) -> Usage:
    """Give what a record adds to what its run and all its children have used."""
    if record.event_type in _OF_MODEL:
        return read_usage(_about(record)["usage"])
    return spent_by_child(record)


def spent_by_child(record: Record) -> Usage:
    """Give what a record says that a child and its own children have used."""
    if record.event_type in _OF_CHILDREN:
        used = _about(record).get("child", {}).get("usage")
        return read_usage(used) if used else Usage()
    return Usage()


def children_usage(records: Iterable[Record]) -> Usage | None:
    """Add up what the children of a run have used; None if none has said so."""
    said = [spent_by_child(record) for record in records]
    return sum(said, Usage()) if any(usage != Usage() for usage in said) else None


def end_code(record: Record) -> str:
    """Give why a run ended without an answer: a failure's code, `aborted`, `max_steps`; else ""."""
    if record.event_type == "failed":
        return str(record.metadata.get("code", "failed"))
    return record.event_type if record.event_type in TERMINAL - {"completed"} else ""


def _about(record: Record) -> Any:  # noqa: ANN401 - as the store gives it
    return record.metadata
