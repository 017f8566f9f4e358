"""The ids of a run's spans: made of the ids of run and call, not by chance.

So whoever goes on with a run goes on in its trace, and nothing of that is on record (decision 221).
"""

import hashlib

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

_TRACE_BYTES, _SPAN_BYTES = 16, 8


def trace_id_of(run_id: str) -> int:
    """Give the trace of a run that nobody has begun one for. A run's id is random, so this is."""
    return _number(f"trace {run_id}", _TRACE_BYTES)


def span_id_of(run_id: str, what: str = "") -> int:
    """Give the span of a run, or of `what` in it: the id of a call, or as `RunTrace` names it."""
    return _number(f"span {run_id} {what}", _SPAN_BYTES)


def _number(text: str, size: int) -> int:
    found = hashlib.sha256(text.encode()).digest()[:size]
    return int.from_bytes(found, "big") or 1  # 0 is no id


class PlannedIds(RandomIdGenerator):
    """Gives the next span the ids that are planned for it, and all others random ones."""

    def __init__(self) -> None:
        self._trace_id: int | None = None
        self._span_id: int | None = None

    def plan(self, span_id: int, trace_id: int | None = None) -> None:
        """Set the ids of the next span; with a parent it has the parent's trace."""
        self._span_id, self._trace_id = span_id, trace_id

    def generate_span_id(self) -> int:
        planned, self._span_id = self._span_id, None
        return super().generate_span_id() if planned is None else planned

    def generate_trace_id(self) -> int:
        planned, self._trace_id = self._trace_id, None
        return super().generate_trace_id() if planned is None else planned
