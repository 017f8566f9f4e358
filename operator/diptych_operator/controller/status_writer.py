"""Writes an Agent's status if it has changed, and an Event for each transition in it.

Not here: what the status says (`status.conditions`).
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import (
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
)
from diptych_operator.resources.kinds import AGENT, NamespacedName, Object
from diptych_operator.status.conditions import StatusInputs, agent_status
from diptych_operator.status.events import event_of, transitions

_log = logging.getLogger(__name__)


class StatusWriter:
    """The status of all Agents. `now` gives the time as the API writes it, in whole seconds."""

    def __init__(
        self, client: KubernetesClient, cache: ObjectCache, now: Callable[[], str]
    ) -> None:
        self._client = client
        self._cache = cache
        self._now = now

    async def write(self, name: NamespacedName, inputs: StatusInputs) -> None:
        """Write the status that follows from `inputs` and the live Deployment."""
        agent = self._cache.agent(name)
        if agent is None:
            return
        inputs = replace(inputs, deployment=self._cache.deployment(agent))
        status = agent_status(agent, inputs, self._now())
        if status == agent.status:
            return
        try:
            live = await self._client.apply_status(name, agent.uid, status)
        except (NotFoundError, ConflictError):
            return  # the Agent is gone; if there is a new one of its name, a watch queues it
        except ForbiddenError as error:
            _log.warning("%s/%s: %s", *name, error)
            return
        self._cache.put(AGENT, live)
        for transition in transitions(agent.status, status):
            await self._record(event_of(agent, transition, self._now(), secrets.token_hex(8)))

    async def _record(self, event: Object) -> None:
        try:
            await self._client.create(event)
        except ApiError as error:  # the status says the same
            _log.debug("an Event could not be created: %s", error)
