"""Puts what proved callers may do, or may not, on the logger `diptych.audit`: a line of JSON each.

Decisions on calls that wait for approval are there, too, whoever has decided.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from diptych.access.caller import Caller, Forbidden, ForeignRun, OwnRun
from diptych.access.grants import Right
from diptych.access.limits import LimitExceeded
from diptych.core.errors import RequestError, RunNotFound
from diptych.net.redaction import without_tokens

What = Literal[
    "start", "resume", "steer", "follow-up", "clear", "cancel", "delete", "delete-run", "decide"
]
_audit = logging.getLogger("diptych.audit")


@dataclass(slots=True)
class AuditEntry:
    """What a decision is about: the id of a run, or of a session that is deleted.

    On a call that waits for approval `call` is its id, `decision` what is wanted, `outcome` what
    was decided, `why` the reason that was given.
    """

    about: str = ""
    call: str = ""
    decision: str = ""
    outcome: str = "allowed"
    why: str = ""


@contextmanager
def audited(caller: Caller, right: Right, what: What, about: str = "") -> Iterator[AuditEntry]:
    """Note what becomes of the block: it is allowed, or refused by an error that says so.

    Nothing is noted of a block that fails otherwise, nor of callers that nobody has proved, but
    what they have decided on a call that waits: that is noted of everybody. Where a decision was
    wanted and nobody can say what became of it, as the store or this process ends, its outcome is
    `unconfirmed`: it may be on record.
    """
    noted = AuditEntry(about)
    try:
        yield noted
    except OwnRun as error:
        _note(caller, right, what, noted, error.why)
        raise
    except ForeignRun:
        _note(caller, right, what, noted, "the session is somebody else's")
        raise
    except Forbidden as error:
        _note(caller, right, what, noted, f"it lacks the right {error.right.value}")
        raise
    except LimitExceeded:
        _note(caller, right, what, noted, "its limit is reached")
        raise
    except RunNotFound:
        _note(caller, right, what, noted, "there is none, or it is somebody else's")
        raise
    except RequestError:
        raise
    except BaseException:
        if noted.decision:
            noted.outcome = "unconfirmed"
            _note(caller, right, what, noted)
        raise
    _note(caller, right, what, noted)


def _note(caller: Caller, right: Right, what: What, noted: AuditEntry, refusal: str = "") -> None:
    is_decision = what == "decide" and not refusal
    if caller.subject is None and not is_decision:
        return
    level = logging.WARNING if refusal or is_decision else logging.INFO
    if not _audit.isEnabledFor(level):
        return
    line = {
        "subject": str(caller.subject or "anybody"),
        "right": right.value,
        "what": what,
        "session" if what == "delete" else "run": _shown(noted.about, 200),
        "outcome": "refused" if refusal else noted.outcome,
    }
    if noted.call:
        line["call"] = _shown(noted.call, 200)
    if refusal or is_decision:
        line["why"] = refusal or _shown(noted.why, 300)
    if noted.outcome == "unconfirmed":
        line["decision"] = noted.decision
    _audit.log(level, "%s", json.dumps(line, ensure_ascii=True))


def _shown(text: str, limit: int) -> str:
    return without_tokens(text)[:limit]
