"""Ids of runs, which carry the epoch of their store, and of sessions, which carry their owner."""

import re
from functools import lru_cache
from urllib.parse import quote, unquote

OWNER_END = "/"
"""Ends the owner in the stored id of a session; neither part has it."""
_RUN_ID = re.compile(r"run-([0-9a-f]{8})-[0-9a-f]{32}")


@lru_cache(maxsize=4096)
def owner_key(subject: str) -> str:
    """Return the owner in a subject's session ids: of `user:a/b` it is `user:a%2Fb`."""
    return quote(subject, safe=":@._-")


def subject_of(stored_id: str) -> str:
    """Return the subject that a session belongs to; "" if it has no owner."""
    return unquote(owner_of(stored_id))


def owned_session(owner: str, session_id: str) -> str:
    """Return the id under which an owner's session is stored; "" is nobody."""
    return f"{owner}{OWNER_END}{session_id}" if owner else session_id


def owner_of(stored_id: str) -> str:
    """Return the owner in a stored id; "" if it has none."""
    return stored_id.rpartition(OWNER_END)[0]


def public_id(stored_id: str) -> str:
    """Return a session's id as its owner knows it."""
    return stored_id.rpartition(OWNER_END)[2]


def run_id_of(epoch: str, token: str) -> str:
    """Make an id of a store's epoch (8 hex digits) and a new token (32)."""
    return f"run-{epoch}-{token}"


def epoch_of(run_id: str) -> str:
    """Return the epoch in a run id; "" if it has none. Of a lost run it is another store's."""
    form = _RUN_ID.fullmatch(run_id)
    return form[1] if form else ""
