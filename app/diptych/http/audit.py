"""Logs allowed and refused actions of known callers on `diptych.audit`, a JSON line each.

Decisions on approvals and answers to questions are logged for unknown callers too.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from diptych.access.caller import Caller, Forbidden
from diptych.access.grants import Right
from diptych.access.limits import LimitExceeded
from diptych.core.errors import RequestError, RunNotFound
from diptych.net.redaction import without_tokens

What = Literal[
    "start",
    "resume",
    "steer",
    "follow-up",
    "clear",
    "cancel",
    "delete",
    "delete-run",
    "decide",
    "answer",
]
_audit = logging.getLogger("diptych.audit")


@dataclass(slots=True)
class AuditEntry:
    """The object of an audit line: a run's id, or a deleted session's.

    For approvals and questions, `call` is the call's id, `decision` the requested one or the
    action, `outcome` the one in force, `why` its reason.
    """

    about: str = ""
    call: str = ""
    decision: str = ""
    outcome: str = "allowed"
    why: str = ""


@contextmanager
def audited(caller: Caller, right: Right, what: What, about: str = "") -> Iterator[AuditEntry]:
    """Log whether the block was allowed or refused.

    Other failures are not logged; unknown callers only with their decisions and answers. If the
    store or this process fails meanwhile, the outcome is `unconfirmed`: it may have been recorded.
    """
    noted = AuditEntry(about)
    try:
        yield noted
    except (Forbidden, LimitExceeded, RunNotFound) as error:
        _note(caller, right, what, noted, _refusal(error))
        raise
    except RequestError:
        raise
    except BaseException:
        if noted.decision:
            noted.outcome = "unconfirmed"
            _note(caller, right, what, noted)
        raise
    _note(caller, right, what, noted)


def _refusal(error: Forbidden | LimitExceeded | RunNotFound) -> str:
    match error:
        case Forbidden():
            return error.why
        case LimitExceeded():
            return "its limit is reached"
        case RunNotFound():
            return "not found, or it belongs to another subject"


def _note(caller: Caller, right: Right, what: What, noted: AuditEntry, refusal: str = "") -> None:
    is_decision = what in {"decide", "answer"} and not refusal
    if caller.subject is None and not is_decision:
        return
    level = logging.WARNING if refusal or is_decision else logging.INFO
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
    write_line(level, line)


def write_line(level: int, line: Mapping[str, str]) -> None:
    """Write a line of the audit log."""
    _audit.log(level, "%s", json.dumps(line, ensure_ascii=True))


def _shown(text: str, limit: int) -> str:
    return without_tokens(text)[:limit]
