"""Rebuilds a run from its record: what the record does not show did not happen (loop.md §9)."""

from collections.abc import Sequence
from typing import Any

from diptych.core.codec import Record, decode
from diptych.core.errors import LoopError
from diptych.core.messages import Message
from diptych.core.reducer import replay
from diptych.core.state import Run
from diptych.runs.run_log import RunLog
from diptych.runs.stores import Stores


class UnreadableRecord(Exception):
    """A newer version wrote the run's record, and this version cannot read it."""


async def rebuild(log: RunLog, stores: Stores, *, has_history: bool = True) -> Run:
    """Rebuild a run; without `has_history` its session has no conversation before it.

    Raises `UnreadableRecord`, and `BlobMissing` or another `StoreError`.
    """
    history: tuple[Message, ...] = ()
    if has_history:
        history = await stores.sessions.conversation(log.session_id)
    return await rebuilt(log.records, stores, history)


async def rebuilt(records: Sequence[Record], stores: Stores, history: tuple[Message, ...]) -> Run:
    """Rebuild a run from its records, and what its session had said before. Raises as `rebuild`."""
    try:
        return replay(await _events(records, stores), history)
    except (LoopError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(
            f"this version cannot read its record, and a newer one must ({error})"
        ) from error


async def _events(records: Sequence[Record], stores: Stores) -> list[Any]:
    keys = [str(r.content) for r in records if r.event_type == "offered"]
    blobs = {key: await stores.log.get_blob(key) for key in keys}
    return [decode(r.event_type, r.content, r.metadata, blobs.__getitem__) for r in records]
