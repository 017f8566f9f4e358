"""Errors that keep an Agent's children from being applied: manifest, cluster or API. Pure."""

from diptych_operator.desired.children import (
    Children,
)
from diptych_operator.kubernetes.errors import ApiError, ForbiddenError
from diptych_operator.resources.agent import (
    Agent,
    controller_of,
    is_owned_by,
)
from diptych_operator.resources.kinds import AGENT, Object, kind_of
from diptych_operator.status.condition import (
    FORMER_AGENT,
    KIND_MISSING,
    MENDED_ELSEWHERE,
    Problem,
)

RETRY_SECONDS = 30.0
"""After which a manifest that cannot be served is tried again."""
BLOCKED_SECONDS = 15.0
"""After which it is looked whether an obstacle in the cluster is gone."""


class Rejected(Exception):
    """The manifest cannot be served; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Blocked(Exception):
    """The manifest is fine, and its children cannot be applied now; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def check_ownership(agent: Agent, children: Children, live: list[Object | None]) -> None:
    """Raise `Blocked` or `Rejected` if a live object is not the Agent's."""
    foreign = [
        (kind_of(child).name, child["metadata"]["name"], found)
        for child, found in zip(children.to_apply, live, strict=True)
        if found is not None and not is_owned_by(found, agent)
    ]
    for kind, _, found in foreign:
        owner = controller_of(found) or {}
        if (owner.get("kind"), owner.get("name")) == (AGENT.name, agent.name):
            message = f"The {kind} of a former Agent called {agent.name} is still there."
            raise Blocked(Problem(FORMER_AGENT, message))
    for kind, name, _ in foreign:
        raise name_conflict(kind, name, f"rename the Agent, or delete that {kind}")


def retry_after(rejection: Problem | None, blocker: Problem | None) -> float | None:
    """Return the seconds after which to try again; None if nothing is in the way."""
    if rejection and rejection.reason not in MENDED_ELSEWHERE:
        return RETRY_SECONDS
    return BLOCKED_SECONDS if rejection or blocker else None


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


def name_conflict(kind: str, name: str, remedy: str) -> Rejected:
    """Return the error for an object of somebody else that has a name that the Agent needs."""
    message = f"There is a {kind} called {name} that does not belong to this Agent; {remedy}."
    return Rejected(Problem("NameConflict", message))


def blocker_of(error: ApiError) -> Problem:
    """Return why a write failed, in the API's words."""
    if not isinstance(error, ForbiddenError):
        return Problem("WriteFailed", f"What the Agent needs cannot be written: {error}")
    if _is_missing_right(str(error)):
        return Problem("Forbidden", f"The operator may not do its work: {error}")
    return Problem("Denied", f"A rule of the cluster denies what the Agent needs: {error}")


def _is_missing_right(words: str) -> bool:
    """Whether a 403 is the authorizer's; else it is a quota's or an admission rule's."""
    return "cannot " in words and "denied the request" not in words
