"""Subjects: who asks, as access.md names them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

SubjectKind: TypeAlias = Literal["agent", "serviceaccount", "user", "key"]


@dataclass(frozen=True, slots=True)
class Subject:
    """Whoever asks, proved.

    `name` is `<namespace>/<name>` of an agent or a ServiceAccount, else a plain name. `groups` are
    a user's, as its issuer says.
    """

    kind: SubjectKind
    name: str
    groups: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """The form of records, logs and session owners: `<kind>:<name>`."""
        return f"{self.kind}:{self.name}"
