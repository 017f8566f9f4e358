"""Subjects and their rights at an agent (access.md). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

SubjectKind: TypeAlias = Literal["agent", "serviceaccount", "user", "key", "schedule", "trigger"]
GranteeKind: TypeAlias = Literal["agent", "serviceaccount", "group", "user", "key"]


@dataclass(frozen=True, slots=True)
class Subject:
    """An authenticated caller.

    `name` is `<namespace>/<name>` for an agent or a ServiceAccount, else a plain name. `groups` are
    the user's groups according to its issuer. Schedules and triggers of the agent itself are
    subjects, too; no credential proves one.
    """

    kind: SubjectKind
    name: str
    groups: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return `<kind>:<name>`, the form used in records, logs and session owners."""
        return f"{self.kind}:{self.name}"

    @property
    def runs_schedules(self) -> bool:
        """Whether it is the account of an Agent's schedules; their names are the operator's."""
        return self.kind == "serviceaccount" and self.name.endswith(".schedules")


class Right(Enum):
    """A right of a subject; the value is its name in manifests and error messages."""

    ASK = "ask"  # start runs; see, follow, steer, cancel and resume those of its own sessions
    READ = "read"  # all sessions, runs and events
    APPROVE = "approve"  # decide approvals of others' runs
    MANAGE = "manage"  # cancel any run, delete any session
    STATUS = "status"  # for the operator, not in manifests: details of `/ready`, a pool's agents


@dataclass(frozen=True, slots=True)
class Grantee:
    """The subjects of a grant.

    `name` is `<namespace>/<name>` for an agent or a ServiceAccount; `<namespace>/*` matches all in
    a namespace, `*/*` all.
    """

    kind: GranteeKind
    name: str

    def matches(self, subject: Subject) -> bool:
        """Whether the grantee includes this subject."""
        if self.kind == "group":
            return self.name in subject.groups
        if self.kind != subject.kind:
            return False
        namespace, _, rest = self.name.partition("/")
        if rest == "*" and self.kind in {"agent", "serviceaccount"}:
            return namespace == "*" or subject.name.startswith(f"{namespace}/")
        return self.name == subject.name


@dataclass(frozen=True, slots=True)
class Grant:
    """A set of rights for some subjects."""

    to: tuple[Grantee, ...]
    may: frozenset[Right]


def rights_of(subject: Subject, grants: Iterable[Grant]) -> frozenset[Right]:
    """Return the union of the rights granted to a subject."""
    rights: frozenset[Right] = frozenset()
    for grant in grants:
        if any(grantee.matches(subject) for grantee in grant.to):
            rights |= grant.may
    return rights
