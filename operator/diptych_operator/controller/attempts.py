"""Outcomes of writing an owner's children, and how often that failed in a row."""

import logging
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass

from diptych_operator.controller.obstacles import Blocked, Rejected, blocker_of, retry_after
from diptych_operator.kubernetes.errors import (
    ApiError,
    ForbiddenError,
    NamespaceTerminatingError,
)
from diptych_operator.resources.kinds import ObjectKey
from diptych_operator.resources.owner import Owner
from diptych_operator.status.condition import Problem

TRIES = 3
"""After which a write that fails is reported as an obstacle."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why the manifest was rejected, or its children could not be written; else nothing.

    `failure` is to be raised once the status is written, so that it is tried again.
    """

    rejection: Problem | None = None
    blocker: Problem | None = None
    failure: ApiError | None = None

    @property
    def retry_after(self) -> float | None:
        """The seconds after which to try again; None if nothing is in the way."""
        return retry_after(self.rejection, self.blocker)


class Attempts:
    """The attempts of all owners of a kind."""

    def __init__(self) -> None:
        self._failures: Counter[ObjectKey] = Counter()

    async def outcome(self, owner: Owner, writing: Awaitable[None]) -> Outcome:
        """Wait for the writing of an owner's children; return the outcome.

        Raises `ApiError` if a retry may help.
        """
        try:
            await writing
        except NamespaceTerminatingError:
            raise
        except Rejected as error:
            outcome = Outcome(rejection=error.problem)
        except Blocked as error:
            outcome = Outcome(blocker=error.problem)
        except ForbiddenError as error:
            outcome = Outcome(blocker=blocker_of(owner, error))
            _log.warning("%s: %s", owner.key, error)
        except ApiError as error:
            self._failures[owner.key] += 1
            if self._failures[owner.key] < TRIES:
                raise
            return Outcome(blocker=blocker_of(owner, error), failure=error)
        else:
            outcome = Outcome()
        self.forget(owner.key)
        return outcome

    def forget(self, key: ObjectKey) -> None:
        """Forget the failures of an owner."""
        self._failures.pop(key, None)
