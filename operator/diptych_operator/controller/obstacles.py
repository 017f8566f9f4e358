"""Errors that keep an owner's children from being applied: manifest, cluster or API. Pure."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from diptych_operator.kubernetes.errors import ApiError, ForbiddenError, InvalidError
from diptych_operator.resources.kinds import Object, kind_of
from diptych_operator.resources.owner import ManifestError, Owner, controller_of, is_owned_by
from diptych_operator.status.condition import (
    FORMER_OWNER,
    KIND_MISSING,
    MENDED_ELSEWHERE,
    MOVES_TO_POOL,
    Problem,
)

RETRY_SECONDS = 30.0
"""After which a manifest that cannot be served is tried again."""
BLOCKED_SECONDS = 15.0
"""After which an obstacle in the cluster is looked for again."""


class Obstacle(Exception):
    """The children of an owner cannot be applied; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Rejected(Obstacle):
    """The manifest cannot be served."""


class Blocked(Obstacle):
    """The manifest is fine, and its children cannot be applied now."""


def check_ownership(owner: Owner, live: Iterable[Object]) -> None:
    """Raise `Blocked` or `Rejected` if a live object is not the owner's."""
    own = owner.kind.name
    foreign = [found for found in live if not is_owned_by(found, owner)]
    for found in foreign:
        controller = controller_of(found) or {}
        if (controller.get("kind"), controller.get("name")) == (own, owner.name):
            message = f"The {found['kind']} of a former {own} called {owner.name} is still there."
            raise Blocked(Problem(FORMER_OWNER, message))
    for found in foreign:
        kind, name = found["kind"], found["metadata"]["name"]
        message = (
            f"There is a {kind} called {name} that does not belong to this {own}; "
            f"rename the {own}, or delete that {kind}."
        )
        raise Rejected(Problem("NameConflict", message))


@contextmanager
def as_refusal(kind: str) -> Iterator[None]:
    """Raise `Rejected` for an object of a kind that the API finds invalid."""
    try:
        yield
    except InvalidError as error:
        message = f"The cluster does not take the {kind}: {error}"
        raise Rejected(Problem("Refused", message)) from error


@contextmanager
def as_rejection() -> Iterator[None]:
    """Raise `Rejected` for a manifest that cannot be served."""
    try:
        yield
    except ManifestError as error:
        raise Rejected(Problem(error.reason, f"{error}.")) from error
    except ValueError as error:
        message = f"A URL of the manifest is invalid: {error}."
        raise Rejected(Problem("InvalidUrl", message)) from error


def retry_after(rejection: Problem | None, blocker: Problem | None) -> float | None:
    """Return the seconds after which to try again; None if nothing is in the way."""
    if rejection and rejection.reason not in MENDED_ELSEWHERE:
        return RETRY_SECONDS
    return BLOCKED_SECONDS if rejection or blocker else None


def moves_to_pool(pool: str | None) -> Blocked:
    """Return the problem for an Agent whose own pods serve until its pool does."""
    message = f"Its own pods serve it until every pod of AgentPool {pool} does."
    return Blocked(Problem(MOVES_TO_POOL, message))


def issuer_unknown(why: str) -> Blocked:
    """Return the error for an Agent whose access file needs the cluster's issuer of tokens."""
    message = f"The cluster's issuer of tokens is not known, so no pod starts: {why}"
    return Blocked(Problem("IssuerUnknown", message))


def kind_missing(child: Object) -> Blocked:
    """Return the error for an object whose kind the cluster does not have."""
    kind = kind_of(child)
    message = (
        f"The cluster has no {kind.name} ({kind.api_version}), so that the Agent is not exposed; "
        "install the Gateway API's CRDs, or use spec.expose.ingress."
    )
    return Blocked(Problem(KIND_MISSING, message))


def blocker_of(owner: Owner, error: ApiError) -> Problem:
    """Return why a write failed, in the API's words."""
    own = owner.kind.name
    if not isinstance(error, ForbiddenError):
        return Problem("WriteFailed", f"What the {own} needs cannot be written: {error}")
    if _is_missing_right(str(error)):
        return Problem("Forbidden", f"The operator may not do its work: {error}")
    return Problem("Denied", f"A rule of the cluster denies what the {own} needs: {error}")


def _is_missing_right(words: str) -> bool:
    """Whether a 403 is the authorizer's; else it is a quota's or an admission rule's."""
    return "cannot " in words and "denied the request" not in words
