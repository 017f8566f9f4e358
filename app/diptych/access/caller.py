"""The caller of the current request, set by `http.access_guard` in a context variable."""

from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import quote

from diptych.access.grants import Right, Subject
from diptych.core.errors import RequestError
from diptych.ports.ids import OWNER_END, owned_session, owner_key, owner_of


class Forbidden(RequestError):
    """The caller lacks a right. Messages name the right, never the object.

    `why` is for the audit log.
    """

    code = "forbidden"

    def __init__(self, right: Right, message: str = "", why: str = "") -> None:
        super().__init__(message or f"this needs the right {right.value!r}")
        self.why = why or f"it lacks the right {right.value}"


class OwnRun(Forbidden):
    """An approver may not decide on its own run, nor on one started on its behalf."""

    def __init__(self, *, is_on_behalf: bool = False) -> None:
        why = "run started on its behalf" if is_on_behalf else "its own run"
        whose = "started on your behalf" if is_on_behalf else "of your own"
        message = f"you may not decide approvals in a run {whose}; somebody else must"
        super().__init__(Right.APPROVE, message, why)


class ForeignRun(Forbidden):
    """Only the owner of its session may steer or resume a run; no right allows it to others."""

    def __init__(self) -> None:
        message = "only the owner of its session may steer or resume a run"
        super().__init__(Right.ASK, message, "the session belongs to another subject")


@dataclass(frozen=True, slots=True)
class Caller:
    """A subject and its rights; without a subject everything is allowed (mode open).

    With `approves_own` the subject may decide on approvals of its own runs.
    """

    subject: Subject | None = None
    rights: frozenset[Right] = frozenset(Right)
    approves_own: bool = False

    @property
    def name(self) -> str:
        """The subject as records show it; "" without one."""
        return str(self.subject) if self.subject else ""

    @property
    def owner(self) -> str:
        """The owner of the caller's sessions in the store; "" without a subject."""
        return owner_key(self.name)

    def may(self, right: Right) -> bool:
        return right in self.rights

    def require(self, right: Right) -> None:
        """Raise `Forbidden` without the right."""
        if right not in self.rights:
            raise Forbidden(right)

    def stored_id(self, session_id: str, foreign: Right = Right.READ) -> str:
        """Return the stored id of a session: the caller's own, or `<subject>/<session>` of another.

        Another subject's session requires the right to read, or the right `foreign`; without
        either, the returned id matches no session.
        """
        if OWNER_END in session_id:
            if self.may(Right.READ) or self.may(foreign):
                subject, _, own_id = session_id.rpartition(OWNER_END)
                return owned_session(owner_key(subject), own_id)
            session_id = quote(session_id, safe="")
        return owned_session(self.owner, session_id)

    def owns(self, stored_id: str) -> bool:
        """Whether a stored session is the caller's own; without a subject, every session is."""
        return not self.subject or owner_of(stored_id) == self.owner


EVERYBODY = Caller()
_current: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)


def current_caller() -> Caller:
    """Return the caller of the current request."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Set the caller for this task and the tasks that it starts."""
    _current.set(caller)
