"""Subjects and their rights at an agent (access.md). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

SubjectKind: TypeAlias = Literal["agent", "serviceaccount", "user", "key"]
GranteeKind: TypeAlias = Literal["agent", "serviceaccount", "group", "user", "key"]


@dataclass(frozen=True, slots=True)
class Subject:
    """An authenticated caller.

    `name` is `<namespace>/<name>` of an agent or a ServiceAccount, else a plain name. `groups` are
    a user's, as its issuer says.
    """

    kind: SubjectKind
    name: str
    groups: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """The form of records, logs and session owners: `<kind>:<name>`."""
        return f"{self.kind}:{self.name}"


class Right(Enum):
    """A right of a subject; the value is its name in manifests and refusals."""

    ASK = "ask"  # start runs; see, follow, steer, cancel and resume those of its own sessions
    READ = "read"  # all sessions, runs and events
    APPROVE = "approve"  # decide approvals of others' runs
    MANAGE = "manage"  # cancel any run, delete any session
    STATUS = "status"  # the details of `/ready`, and nothing else: the operator's; no manifest's


@dataclass(frozen=True, slots=True)
class Grantee:
    """Subjects that a grant is for.

    `name` is `<namespace>/<name>` of an agent or a ServiceAccount; `<namespace>/*` stands for all
    of a namespace.
    """

    kind: GranteeKind
    name: str

    def matches(self, subject: Subject) -> bool:
        """Whether the subject is one of them."""
        if self.kind == "group":
            return self.name in subject.groups
        if self.kind != subject.kind:
            return False
        namespace, _, rest = self.name.partition("/")
        if rest == "*" and self.kind in {"agent", "serviceaccount"}:
            return subject.name.startswith(f"{namespace}/")
        return self.name == subject.name


@dataclass(frozen=True, slots=True)
class Grant:
    """Some rights for some subjects."""

    to: tuple[Grantee, ...]
    may: frozenset[Right]


def rights_of(subject: Subject, grants: Iterable[Grant]) -> frozenset[Right]:
    """Return all rights that the grants give a subject."""
    rights: frozenset[Right] = frozenset()
    for grant in grants:
        if any(grantee.matches(subject) for grantee in grant.to):
            rights |= grant.may
    return rights
