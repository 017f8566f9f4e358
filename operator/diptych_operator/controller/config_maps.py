"""The ConfigMaps that hold Agents' resolved manifests: created, restored and deleted, never read.

The operator has no right to read ConfigMaps. Whether one exists, and whose it is, follows from its
metadata, which a dry run of its deletion shows (`KubernetesClient.read_metadata`). So one that was
deleted is noticed and created again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.changes import Verb, log_change
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.poll_schedule import PollSchedule
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.rollout import mounted_config_map
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import (
    ApiError,
    ForbiddenError,
    InvalidError,
    UnavailableError,
)
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import CONFIG_MAP, NamespacedName, Object, namespaced_name_of
from diptych_operator.resources.ownership import has_lost_its_owner, is_controlled_by

PERIOD = 25.0
"""Seconds between two looks at a ConfigMap, if there are few Agents."""
TICK = 1.0
UNAVAILABLE_PAUSE = 5.0
"""Seconds without requests after the API was unavailable, unless it asks for another time."""

_CONCURRENCY = 8
_log = logging.getLogger(__name__)


class ConfigMapState(Enum):
    """What came of creating a ConfigMap."""

    CREATED = auto()
    EXISTS = auto()
    FOREIGN = auto()
    """There is one of the same name, which is not the Agent's."""


class ConfigMaps:
    """The ConfigMaps of all Agents, as they were last decided."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cache = cache
        self._queue = queue
        self._claims = claims
        self._schedule = PollSchedule(clock)
        self._desired: dict[NamespacedName, Object] = {}
        self._hindered: set[NamespacedName] = set()
        """Agents whose mounted ConfigMap turned out to be somebody else's, or to be denied."""

    async def ensure(self, agent: Agent, config_map: Object, mounted: str | None) -> ConfigMapState:
        """Create an Agent's ConfigMap if it may be missing.

        While pods mount it, `run` restores it, and nothing is requested here. Raises `ApiError`.
        """
        self._desired[agent.namespaced_name] = config_map
        is_mounted = namespaced_name_of(config_map)[1] == mounted
        if is_mounted and agent.namespaced_name not in self._hindered:
            return ConfigMapState.EXISTS
        look_or_create = self._look if is_mounted else self._create
        state = await look_or_create(agent, config_map)
        if state is not ConfigMapState.FOREIGN:
            self._hindered.discard(agent.namespaced_name)
        return state

    async def delete(self, agent: Agent, name: str) -> None:
        """Delete a ConfigMap if it is the Agent's. Raises `ApiError`."""
        found = await self._client.read_metadata(CONFIG_MAP, (agent.namespace, name))
        if found is not None and is_controlled_by(found, agent):
            uid = found["metadata"]["uid"]
            await self._client.delete(CONFIG_MAP, (agent.namespace, name), uid)
            log_change(agent, Verb.DELETED, CONFIG_MAP, name, "no pod mounts it any more")

    def forget(self, name: NamespacedName) -> None:
        """Forget an Agent that is gone."""
        self._desired.pop(name, None)
        self._hindered.discard(name)

    async def run(self) -> None:
        """Restore each ConfigMap once in `PERIOD`, forever."""
        while True:
            names = iter(self._schedule.pop_due(self._desired, PERIOD))
            pauses = await asyncio.gather(*(self._restore_all(names) for _ in range(_CONCURRENCY)))
            await asyncio.sleep(max(TICK, *pauses))

    async def restore(self, name: NamespacedName) -> None:
        """Create the ConfigMap that an Agent's pods mount, in case it was deleted."""
        agent, config_map = self._cache.agent(name), self._desired.get(name)
        if agent is None or agent.is_terminating or config_map is None:
            return
        if not self._claims.holds(agent.namespace):
            return
        if mounted_config_map(self._cache.deployment(agent)) != config_map["metadata"]["name"]:
            return  # a rollout, or a rejected revision: the reconciler deals with it
        try:
            state = await self._look(agent, config_map)
        except ForbiddenError:  # which the reconciler meets, too, and says
            self._hinder(name)
            return
        match state:
            case ConfigMapState.FOREIGN:
                self._hinder(name)
            case ConfigMapState.CREATED:
                _log.warning("%s/%s: its ConfigMap had been deleted", *name)

    def _hinder(self, name: NamespacedName) -> None:
        """Have the reconciler deal with a ConfigMap."""
        if name not in self._hindered:
            self._hindered.add(name)
            self._queue.add(name)

    async def _restore_all(self, names: Iterator[NamespacedName]) -> float:
        """Restore one ConfigMap after another; give the seconds that the API needs a pause."""
        for name in names:
            try:
                await self.restore(name)
            except UnavailableError as error:
                self._schedule.expedite(name, 0)
                return error.retry_after or UNAVAILABLE_PAUSE
            except ApiError as error:
                _log.debug("%s/%s: cannot restore its ConfigMap: %s", *name, error)
        return 0.0

    async def _look(self, agent: Agent, config_map: Object) -> ConfigMapState:
        """Look at a ConfigMap without writing; restore it if it is gone or has lost its owner."""
        try:
            found = await self._client.read_metadata(CONFIG_MAP, namespaced_name_of(config_map))
        except InvalidError:  # a webhook of the cluster does not allow dry runs
            found = None
        except ForbiddenError:  # a rule denies its deletion, dry runs included: it is there
            return ConfigMapState.EXISTS
        if found is not None and is_controlled_by(found, agent):
            return ConfigMapState.EXISTS
        return await self._create(agent, config_map)

    async def _create(self, agent: Agent, config_map: Object) -> ConfigMapState:
        """Create a ConfigMap; if there is one of its name, find out whose it is."""
        _, own_name = namespaced_name_of(config_map)
        if await self._client.create(config_map):
            log_change(agent, Verb.CREATED, CONFIG_MAP, own_name, "it was not there")
            return ConfigMapState.CREATED
        found = await self._client.read_metadata(CONFIG_MAP, namespaced_name_of(config_map))
        if found is not None and is_controlled_by(found, agent):
            return ConfigMapState.EXISTS
        if found is not None and not has_lost_its_owner(found):
            return ConfigMapState.FOREIGN
        if found is not None:
            await self._client.can_create(config_map)  # it raises if a rule denies that
            await self._client.delete(
                CONFIG_MAP, namespaced_name_of(config_map), found["metadata"]["uid"]
            )
        if not await self._client.create(config_map):
            return ConfigMapState.FOREIGN
        log_change(agent, Verb.CREATED, CONFIG_MAP, own_name, "it had lost its owner")
        return ConfigMapState.CREATED
