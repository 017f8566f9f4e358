"""Puts what proved callers may do, or may not, on the logger `diptych.audit`: a line of JSON each.

Not here: refusals of requests from whom nobody knows (`access_guard`), decisions of the policy on
calls (`diptych.policy`).
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from diptych.access.caller import Caller, Forbidden
from diptych.access.grants import Right
from diptych.access.limits import LimitExceeded
from diptych.errors import RunNotFound

What = Literal["start", "resume", "steer", "cancel", "delete"]
_audit = logging.getLogger("diptych.audit")


@dataclass(slots=True)
class Decided:
    """What a decision is about: the id of a run, or of a session that is deleted."""

    about: str = ""


@contextmanager
def audited(caller: Caller, right: Right, what: What, about: str = "") -> Iterator[Decided]:
    """Note what becomes of the block: it is allowed, or refused by an error that says so.

    Nothing is noted of callers that nobody has proved, nor of a block that fails otherwise.
    """
    decided = Decided(about)
    try:
        yield decided
    except Forbidden as error:
        _note(caller, right, what, decided, f"it lacks the right {error.right.value}")
        raise
    except LimitExceeded:
        _note(caller, right, what, decided, "its limit is reached")
        raise
    except RunNotFound:
        _note(caller, right, what, decided, "there is none, or it is somebody else's")
        raise
    _note(caller, right, what, decided)


def _note(caller: Caller, right: Right, what: What, decided: Decided, refusal: str = "") -> None:
    if caller.subject is None:
        return
    line = {
        "subject": str(caller.subject),
        "right": right.value,
        "what": what,
        "session" if what == "delete" else "run": decided.about[:200],
        "outcome": "refused" if refusal else "allowed",
    }
    if refusal:
        line["why"] = refusal
    level = logging.WARNING if refusal else logging.INFO
    _audit.log(level, "%s", json.dumps(line, ensure_ascii=True))
