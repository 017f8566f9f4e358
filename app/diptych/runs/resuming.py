"""What a run that resumes another begins with (loop.md §6 "Continue").

A run that failed or was aborted is taken up by a new run of its session. What the old one said,
with all results, is in the session's conversation already; so the new one has no message, and no
call is made again. Only a run that ended before it began said nothing: its message is asked anew.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

from diptych.core.codec import Record, event_of, is_terminal
from diptych.core.errors import NotResumable
from diptych.core.events import Origin, RunRequested
from diptych.core.messages import Message
from diptych.ports.entries import IdempotencyKey, RunEntry
from diptych.ports.event_log import EventLog

_RESUMABLE = frozenset({"failed", "aborted"})
_LOST = frozenset({"store_lost"})  # codes of failed runs whose messages are in no conversation


def resume_key(run_id: str) -> IdempotencyKey:
    """The key under which a run is resumed: once, however often that is asked for."""
    return IdempotencyKey(f"resume:{run_id}", "")


async def find_resumable(log: EventLog, run_id: str) -> tuple[Sequence[Record], RunEntry | None]:
    """Give the records of a run that can be resumed, and the run that resumes it already, if any.

    Raises `NotResumable`, and as `EventLog.read` does.
    """
    records = await log.read(run_id)
    _check_end(records[-1])
    session_id = records[0].session_id
    newest, *_ = await log.entries(session_id, limit=1)
    if newest.run_id == run_id:
        return records, None
    if following := _following(await log.entries(session_id), run_id):
        (first, *_) = await log.read(following.run_id, 0, 1)
        if first.metadata.get("resumes") == run_id:
            return records, following
    raise NotResumable(
        f"its session has gone on with {newest.run_id}; send a message to the session"
    )


def _following(entries: Sequence[RunEntry], run_id: str) -> RunEntry | None:
    """Give the run that was opened after a run, of entries whose first is the newest.

    It is the one that resumes that run, if any is: a run is resumed while it is the newest.
    """
    return next((newer for newer, older in pairwise(entries) if older.run_id == run_id), None)


def _check_end(end: Record) -> None:
    if not is_terminal(end):
        raise NotResumable("the run has not ended; wait for its end, or cancel it")
    if end.event_type not in _RESUMABLE:
        raise NotResumable(
            "only a run that failed or was aborted can be resumed; send a message to its session"
        )
    if end.metadata.get("code") in _LOST:
        raise NotResumable("the record of the run is not whole; ask again, with a new run")


def resuming_event(
    records: Sequence[Record], origin: Origin, max_steps: int | None
) -> RunRequested:
    """Give the first event of the run that resumes the one with these records.

    What the caller had asked of that run (system text, parameters, the answer's form) still holds;
    `max_steps` replaces its own, if given.
    """
    first, run_id = records[0], records[0].run_id
    asked = cast("RunRequested", event_of(first))
    kept = replace(
        asked,
        origin=replace(origin, path=asked.origin.path),
        max_steps=asked.max_steps if max_steps is None else max_steps,
        resumes=run_id,
    )
    if any(record.event_type == "offered" for record in records):
        return replace(kept, message="", earlier=(), parts=())
    later = [str(r.content) for r in records[1:] if r.event_type == "user_message"]
    if not later:
        return kept
    said = (Message("user", asked.message, parts=asked.parts),) if asked.message else ()
    before = (*asked.earlier, *said, *(Message("user", text) for text in later[:-1]))
    return replace(kept, message=later[-1], earlier=before, parts=())
