"""The ConfigMaps that hold agents' resolved manifests: made, looked after and deleted unread.

The operator has no right to read ConfigMaps. To make one that is there already is refused and
changes nothing; so making it again and again heals its loss. Whose it is that is there says a
deletion that is only shown (`Cluster.metadata_of`), without its content.

Not here: what a ConfigMap holds (`resolved`), when another one is due (`reconcile`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from diptych_operator.controller.poll_schedule import Turns
from diptych_operator.controller.store import World, controller, controls
from diptych_operator.controller.work_queue import Due
from diptych_operator.desired.deployment import config_in
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.errors import ClusterError, UnavailableError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import CONFIG_MAP, FIELD_MANAGER, Name, Object, name_of

PERIOD = 25.0
"""Seconds after which each ConfigMap is looked after again."""
TICK = 1.0
PAUSE = 5.0
"""Seconds of quiet for an API that does not answer, unless it names another time."""
TRUST = 300.0
"""Seconds for which a ConfigMap that was found to be the agent's counts as such."""
_AT_ONCE = 8

Fate: TypeAlias = Literal["made", "there", "foreign"]
_log = logging.getLogger(__name__)


async def make_config(
    cluster: Cluster, agent: Agent, config: Object, *, is_trusted: bool = False
) -> Fate:
    """Make an agent's ConfigMap, unless it is there; say what came of it.

    One that is there must be the agent's, unless `is_trusted` says that this was looked into.
    Raises `ClusterError`.
    """
    if await cluster.create(config):
        return "made"
    if is_trusted:
        return "there"
    found = await cluster.metadata_of(CONFIG_MAP, name_of(config))
    if found is not None and controls(agent, found):
        return "there"
    if found is not None and not _has_lost_its_owner(found):
        return "foreign"
    if found is not None:
        await cluster.delete(CONFIG_MAP, name_of(config), found["metadata"]["uid"])
    return "made" if await cluster.create(config) else "foreign"


async def delete_config(cluster: Cluster, agent: Agent, name: str) -> None:
    """Delete a ConfigMap of an agent; one that is not the agent's stays. Raises `ClusterError`."""
    found = await cluster.metadata_of(CONFIG_MAP, (agent.namespace, name))
    if found is not None and controls(agent, found):
        await cluster.delete(CONFIG_MAP, (agent.namespace, name), found["metadata"]["uid"])


class Configs:
    """Looks after the ConfigMaps of all agents, one after another."""

    def __init__(
        self,
        cluster: Cluster,
        world: World,
        due: Due,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._due = due
        self._clock = clock
        self._turns = Turns(clock)
        self._trusted: dict[Name, tuple[str, float]] = {}

    async def run(self) -> None:
        """Look after all of them, for ever."""
        while True:
            names = iter(self._turns.take(self._world.configs, PERIOD))
            pauses = await asyncio.gather(*(self._take(names) for _ in range(_AT_ONCE)))
            for name in self._trusted.keys() - self._world.configs.keys():
                del self._trusted[name]
            await asyncio.sleep(max(TICK, *pauses))

    async def _take(self, names: Iterator[Name]) -> float:
        """Look after one ConfigMap after another; give the seconds of quiet that the API needs."""
        for name in names:
            try:
                await self.look_after(name)
            except UnavailableError as error:
                self._turns.soon(name, 0)
                return error.retry_after or PAUSE
            except ClusterError as error:
                _log.debug("%s/%s: cannot look after its ConfigMap: %s", *name, error)
        return 0.0

    async def look_after(self, name: Name) -> None:
        """Make the ConfigMap again that an agent's pods run with, in case it was deleted."""
        agent, config = self._world.agent(name), self._world.configs.get(name)
        if agent is None or agent.is_going or config is None:
            return
        own = config["metadata"]["name"]
        if config_in(self._world.deployment(agent)) != own:
            return  # a rollout, or a revision that was refused: that is for `reconcile`
        trusted, until = self._trusted.get(name, ("", 0.0))
        is_trusted = trusted == own and self._clock() < until
        fate = await make_config(self._cluster, agent, config, is_trusted=is_trusted)
        if fate == "foreign":
            self._trusted.pop(name, None)
            self._world.squatted.add(name)
            self._due.add(name)
            return
        if not is_trusted:
            self._trusted[name] = own, self._clock() + TRUST
        if fate == "made":
            _log.warning("%s/%s: its ConfigMap was deleted; made again", *name)


def _has_lost_its_owner(found: Object) -> bool:
    """Say whether a ConfigMap was the operator's until somebody removed its owner."""
    managers = {entry.get("manager") for entry in found["metadata"].get("managedFields", ())}
    return controller(found) is None and FIELD_MANAGER in managers
