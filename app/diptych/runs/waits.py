"""Finds open approvals and questions, and forwards replies to those of child runs."""

import re
from collections.abc import Sequence
from typing import Any

from diptych.core.codec import Record, is_terminal
from diptych.core.errors import RequestError, RunEnded
from diptych.core.waits import Wait
from diptych.ports import ChildReply

MAX_EXPIRY = 10.0**10  # seconds since the epoch
CALL_PATH = re.compile(r"[A-Za-z0-9_]{1,64}(\.[A-Za-z0-9_]{1,64}){0,6}")


def find_open(
    records: Sequence[Record],
    waits: Sequence[Wait],
    call_id: str,
    missing: type[RequestError],
    second: type[RequestError],
) -> Wait:
    """Return a call's open wait among those of a run.

    Raises `missing` if there is none, `second` with the answer if it is over, or `RunEnded` if the
    run ended without one.
    """
    wait = next((each for each in reversed(waits) if each.call_id == call_id), None)
    if wait is None:
        raise missing
    if wait.is_open:
        return wait
    if wait.answered is None and is_terminal(records[-1]):
        raise RunEnded
    raise second(_answered_text(wait))


def is_below(asked: Record) -> bool:
    """Whether the waiting call belongs to a child run."""
    return "path" in asked.metadata


def reply_below(asked: Record, fields: dict[str, Any]) -> ChildReply:
    """Make the decision or answer to forward to the delegation's agent."""
    about: Any = asked.metadata
    _, _, call_id = about["call_id"].partition(".")
    return ChildReply(
        agent=str(about["agent"]),
        url=str(about["child"]["url"]),
        task_id=str(about["child"]["task_id"]),
        call_id=call_id,
        to="approvals" if asked.event_type == "approval_requested" else "inputs",
        body={k: v for k, v in fields.items() if k != "caller" and v not in ("", None)},
    )


def _answered_text(wait: Wait) -> str:
    if wait.answered is None:
        return "the call no longer waits: a message superseded it, or its run has ended"
    about = wait.answered.metadata
    who = "nobody (it expired)" if about.get("is_expired") else about.get("subject") or "somebody"
    reason = f" ({about['reason']})" if about.get("reason") else ""
    done = "decided" if wait.is_for_approval else "answered"
    return f"already {done}: {wait.answered.content} by {who}{reason}"
