"""Writes an owner's status if it has changed, and an Event for each transition in it."""

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from diptych_operator.controller.apply import Answers
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
)
from diptych_operator.resources.kinds import Object, ObjectKey
from diptych_operator.resources.owner import Owner
from diptych_operator.status.events import PATIENCE, event_of, premature, transitions

_log = logging.getLogger(__name__)


class StatusWriter:
    """The status of all owners. `now` gives the time as the API writes it, in whole seconds."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        answers: Answers,
        now: Callable[[], str],
    ) -> None:
        self._client = client
        self._cache = cache
        self._answers = answers
        self._now = now
        self._reported: dict[ObjectKey, Mapping[str, Any]] = {}
        """The status that Events have told of, where it is not yet the newest one."""

    async def write(
        self, owner: Owner, status_at: Callable[[str], Mapping[str, Any]]
    ) -> float | None:
        """Write the status that `status_at` returns for the time now.

        `owner` is as it was reconciled: the status speaks of that generation, and not of one that
        has come meanwhile.

        Returns the seconds after which it must be looked at again, or None.
        """
        if self._cache.owner(owner.key) is None:
            return None
        now = self._now()
        status = status_at(now)
        if status != owner.status and not await self._apply(owner, status):
            return None
        return await self._report(owner, status, now)

    def forget(self, key: ObjectKey) -> None:
        """Forget an owner that is gone."""
        self._reported.pop(key, None)

    async def _apply(self, owner: Owner, status: Mapping[str, Any]) -> bool:
        """Write a status; return whether that was done."""
        try:
            live = await self._client.apply_status(owner.key, owner.uid, status)
        except (NotFoundError, ConflictError):
            return False  # the owner is gone; if there is a new one of its name, a watch queues it
        except ForbiddenError as error:
            _log.warning("%s: %s", owner.key, error)
            return False
        self._answers.put_owner(owner.kind, live)
        return True

    async def _report(self, owner: Owner, status: Mapping[str, Any], now: str) -> float | None:
        """Create the Events that are due; return the seconds until others may be."""
        before = self._reported.pop(owner.key, owner.status)
        young = premature(before, status, now)
        for transition in transitions(before, status, without=young):
            await self._record(event_of(owner, transition, now, secrets.token_hex(8)))
        if not young:
            return None
        kept = [c for c in before.get("conditions", ()) if c["type"] in young]
        kept += [c for c in status["conditions"] if c["type"] not in young]
        self._reported[owner.key] = {"conditions": kept}
        return PATIENCE

    async def _record(self, event: Object) -> None:
        try:
            await self._client.create(event)
        except ApiError as error:  # the status says the same
            _log.debug("an Event could not be created: %s", error)
