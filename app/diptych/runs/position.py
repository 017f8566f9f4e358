"""The position of a subscriber in a run's record, which a loss of the store may move back."""

from collections.abc import Sequence

from diptych.core.codec import Record, is_terminal


class Position:
    """What a subscriber has seen: all records up to `seq`.

    A number alone does not say which record was seen: after a loss the run goes on with other
    records under the same numbers. So the newest record is remembered by type and time, and so are
    the restarts: the records with which a run went on after a loss.
    """

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.is_at_end = False
        self._newest: tuple[str, float] | None = None  # None: it came with a number only
        self._restarts: list[Record] = []

    @property
    def is_number_only(self) -> bool:
        return self._newest is None

    def is_at(self, record: Record) -> bool:
        """Whether this record is the newest one that was seen."""
        return self._newest == _mark(record)

    def is_new_restart(self, record: Record) -> bool:
        """Whether the run goes on here after a loss, and the subscriber does not know yet."""
        return _is_restart(record) and record not in self._restarts

    def advance_past(self, records: Sequence[Record]) -> None:
        if records:
            self.move_to(records[-1])
            self._restarts += filter(_is_restart, records)

    def move_to(self, record: Record | None) -> None:
        """Be after this record; with None, at the beginning."""
        self.seq = record.seq if record else 0
        self._newest = _mark(record) if record else None
        self.is_at_end = record is not None and is_terminal(record)

    def move_before(self, record: Record) -> None:
        self.seq = record.seq - 1


def _mark(record: Record) -> tuple[str, float]:
    return record.event_type, record.timestamp


def _is_restart(record: Record) -> bool:
    return record.event_type == "owner_changed" and bool(record.metadata.get("lost_tail"))
