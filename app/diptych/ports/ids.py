"""Ids of runs, which contain their store's epoch, and of sessions, which contain their owner."""

import re
from functools import lru_cache
from urllib.parse import quote, unquote

OWNER_END = "/"
"""Separates owner and session in a stored session id; neither contains it."""
_RUN_ID = re.compile(r"run-([0-9a-f]{8})-[0-9a-f]{32}")


@lru_cache(maxsize=4096)
def owner_key(subject: str) -> str:
    """Encode a subject for use in stored session ids: `user:a/b` becomes `user:a%2Fb`."""
    return quote(subject, safe=":@._-")


def subject_of(stored_id: str) -> str:
    """Return the subject that owns a session; "" if it has no owner."""
    return unquote(owner_of(stored_id))


def owned_session(owner: str, session_id: str) -> str:
    """Return the stored id of an owner's session; an `owner` of "" means none."""
    return f"{owner}{OWNER_END}{session_id}" if owner else session_id


def owner_of(stored_id: str) -> str:
    """Return the encoded owner in a stored id; "" if it has none."""
    return stored_id.rpartition(OWNER_END)[0]


def public_id(stored_id: str) -> str:
    """Return a session's id without its owner, as used in the owner's requests."""
    return stored_id.rpartition(OWNER_END)[2]


def run_id_of(epoch: str, token: str) -> str:
    """Return the id of a new run, from the store's epoch (8 hex digits) and a token (32)."""
    return f"run-{epoch}-{token}"


def epoch_of(run_id: str) -> str:
    """Return the store epoch in a run id; "" if it has none. A lost run has a former epoch."""
    form = _RUN_ID.fullmatch(run_id)
    return form[1] if form else ""
