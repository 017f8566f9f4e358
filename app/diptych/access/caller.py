"""The caller of the request that is being answered: its subject, its rights, its sessions.

It stands in a context variable, as the identity of a request usually does: `http.access_guard`
sets it, and whatever works for the request finds it here.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import quote

from diptych.access.grants import Right
from diptych.access.subject import Subject
from diptych.ports.ids import OWNER_END, owned_session, owner_key, owner_of


class Forbidden(Exception):
    """The caller lacks a right. Refusals name it, and never what was asked for."""

    def __init__(self, right: Right) -> None:
        super().__init__(f"this needs the right {right.value!r}")
        self.right = right


class OwnRun(Forbidden):
    """Somebody would approve what it has asked for itself, or what is asked on its behalf.

    `why` is for the audit.
    """

    def __init__(self, *, is_on_behalf: bool = False) -> None:
        super().__init__(Right.APPROVE)
        self.why = "it was begun on its behalf" if is_on_behalf else "it began the run itself"
        who = "on whose behalf a run was begun" if is_on_behalf else "who began a run"
        self.args = (f"{who} does not decide on its approvals; somebody else must",)


class ForeignRun(Forbidden):
    """Somebody would go on with what another has begun: no right opens that."""

    def __init__(self) -> None:
        super().__init__(Right.ASK)
        self.args = ("a run is steered and resumed by nobody but whom its session belongs to",)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what it may do. Without a subject everybody may do everything (mode open).

    Only who `approves_own` decides on approvals of runs that it began.
    """

    subject: Subject | None = None
    rights: frozenset[Right] = frozenset(Right)
    approves_own: bool = False

    @property
    def owner(self) -> str:
        """The owner that the caller's sessions bear in the store; "" without a subject."""
        return owner_key(str(self.subject)) if self.subject else ""

    def may(self, right: Right) -> bool:
        return right in self.rights

    def require(self, right: Right) -> None:
        """Raise `Forbidden` without the right."""
        if right not in self.rights:
            raise Forbidden(right)

    def stored_id(self, session_id: str, foreign: Right = Right.READ) -> str:
        """Give the stored id of a session: of the caller's own, or of a subject's by right.

        A subject's is `<subject>/<session>`, for who may read or has the right to `foreign` ones;
        for anybody else it is the id of no session.
        """
        if OWNER_END in session_id:
            if self.may(Right.READ) or self.may(foreign):
                subject, _, own_id = session_id.rpartition(OWNER_END)
                return owned_session(owner_key(subject), own_id)
            session_id = quote(session_id, safe="")
        return owned_session(self.owner, session_id)

    def owns(self, stored_id: str) -> bool:
        """Whether a stored session is the caller's own; without a subject every one is."""
        return not self.subject or owner_of(stored_id) == self.owner


EVERYBODY = Caller()
_current: ContextVar[Caller] = ContextVar("caller", default=EVERYBODY)


def current_caller() -> Caller:
    """Give the caller of the request that is being answered."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Set the caller for this task and what it starts."""
    _current.set(caller)
