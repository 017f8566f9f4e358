"""The ids under which sessions are stored: an owner's are apart from those of all others."""

from functools import lru_cache
from urllib.parse import quote, unquote

OWNER_END = "/"
"""Ends the owner in the stored id of a session; neither an owner nor a session's own id has it."""


@lru_cache(maxsize=4096)
def owner_key(subject: str) -> str:
    """Give the owner that the sessions of a subject bear: `user:a/b` is `user:a%2Fb`."""
    return quote(subject, safe=":@._-")


def subject_of(stored_id: str) -> str:
    """Give the subject that a session belongs to; "" if it has no owner."""
    return unquote(owner_of(stored_id))


def owned_session(owner: str, session_id: str) -> str:
    """Give the id under which an owner's session is stored; "" is nobody's."""
    return f"{owner}{OWNER_END}{session_id}" if owner else session_id


def owner_of(stored_id: str) -> str:
    """Give the owner in a stored id; "" if it has none."""
    return stored_id.rpartition(OWNER_END)[0]


def public_id(stored_id: str) -> str:
    """Give a session's id as its owner knows it."""
    return stored_id.rpartition(OWNER_END)[2]
