"""Takes away what an Agent has and should not have: children that it does not need any more.

An Agent that may not be exposed as its manifest asks loses its route, and its NetworkPolicy admits
nobody for it any more. All else of it goes on as it was.
"""

from collections.abc import Collection, Iterable

from diptych_operator.controller.apply import Applier
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.changes import Verb, log_change
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    NETWORK_POLICY,
    ROUTE_KINDS,
    Kind,
    Object,
    namespaced_name_of,
)


class Surplus:
    """Deletes the surplus children of all Agents."""

    def __init__(self, client: KubernetesClient, cache: ObjectCache, applier: Applier) -> None:
        self._client = client
        self._cache = cache
        self._applier = applier

    async def delete(
        self, agent: Agent, desired: Collection[Kind], config_maps: Iterable[Object]
    ) -> None:
        """Delete children of all but the desired kinds, and ConfigMaps. Raises `ApiError`."""
        for kind, live in tuple(self._cache.children(agent)):
            if kind not in desired:
                await self._delete(agent, kind, live, "it is not needed")
        for live in config_maps:
            await self._delete(agent, CONFIG_MAP, live, "no pod mounts it any more")

    async def unexpose(self, agent: Agent, network_policy: Object) -> None:
        """Delete an Agent's routes; apply the policy that admits nobody. Raises `ApiError`."""
        for kind, live in tuple(self._cache.children(agent)):
            if kind in ROUTE_KINDS:
                await self._delete(agent, kind, live, "the Agent may not be exposed like that")
            elif kind is NETWORK_POLICY:
                await self._applier.apply_if_drifted(agent, network_policy, live)

    async def _delete(self, agent: Agent, kind: Kind, live: Object, why: str) -> None:
        if "deletionTimestamp" in live["metadata"]:
            return
        await self._client.delete(kind, namespaced_name_of(live), live["metadata"]["uid"])
        log_change(agent, Verb.DELETED, kind, live["metadata"]["name"], why)
        if kind in ROUTE_KINDS:  # no watch tells of it
            self._cache.remove(kind, live)
