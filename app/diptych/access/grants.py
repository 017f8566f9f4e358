"""Grants: which rights a subject has at an agent (access.md "What it may"). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from diptych.access.subject import Subject

GranteeKind = Literal["agent", "serviceaccount", "group", "user", "key"]


class Right(Enum):
    """What a subject may do; the value is its name in manifests and refusals."""

    ASK = "ask"  # start runs; see, follow, steer, cancel and resume those of its own sessions
    READ = "read"  # all sessions, runs and events
    APPROVE = "approve"  # decide approvals of others' runs
    MANAGE = "manage"  # cancel any run, delete any session
    STATUS = "status"  # the details of `/ready`, and nothing else: the operator's; no manifest's


@dataclass(frozen=True, slots=True)
class Grantee:
    """Whom a grant is for.

    `name` is `<namespace>/<name>` of an agent or a ServiceAccount; `<namespace>/*` stands for all
    of a namespace.
    """

    kind: GranteeKind
    name: str

    def matches(self, subject: Subject) -> bool:
        """Whether the subject is meant."""
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
    """All rights that the grants give a subject; none if nothing matches."""
    rights: frozenset[Right] = frozenset()
    for grant in grants:
        if any(grantee.matches(subject) for grantee in grant.to):
            rights |= grant.may
    return rights
