"""Reads tool servers of other API groups, to which Agents refer.

Only the Agents name their kinds, so these are not watched: each object is read again after a
minute.
"""

import time
from collections.abc import Callable

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.desired.references import ForeignRef, Unresolved
from diptych_operator.desired.tool_servers import foreign_refs
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ForbiddenError, NotFoundError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Kind, Object

PERIOD = 60.0
"""Seconds after which an object is read again."""


class ForeignServers:
    """Keeps `ObjectCache.foreign_servers` up to date."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._cache = cache
        self._clock = clock
        self._read_at: dict[ForeignRef, float] = {}

    async def refresh(self, agent: Agent) -> float | None:
        """Read what an Agent refers to; return the seconds until that is due again, or None.

        Raises `ApiError`.
        """
        refs = set(foreign_refs(agent))
        for ref in refs:
            if self._clock() - self._read_at.get(ref, -PERIOD) >= PERIOD:
                self._cache.foreign_servers[ref] = await self._read(ref)
                self._read_at[ref] = self._clock()
        return PERIOD if refs else None

    async def _read(self, ref: ForeignRef) -> Object | Unresolved:
        where = f"{ref.kind} {ref.name} ({ref.group}, namespace {ref.namespace})"
        if not self._cache.is_watched(ref.namespace):
            return Unresolved(
                "NamespaceNotWatched",
                f"{where} cannot be seen: this operator does not watch namespace {ref.namespace}",
            )
        kind = await self._kind(ref)
        if kind is None:
            sentence = f"The cluster has no kind {ref.kind} in {ref.group}; correct spec.tools"
            return Unresolved("KindNotFound", sentence)
        try:
            found = await self._client.find(kind, (ref.namespace, ref.name))
        except ForbiddenError:
            return Unresolved(
                "KindNotReadable",
                f"The operator may not read {kind.plural} of {ref.group}; the chart's value "
                "rbac.toolServerKinds lists what it may",
            )
        except NotFoundError:  # its CRD has just gone
            found = None
        if found is None:
            sentence = f"{where} is not there; create it or correct spec.tools"
            return Unresolved("MCPServerNotFound", sentence)
        return {name: found.get(name) or {} for name in ("metadata", "spec", "status")}

    async def _kind(self, ref: ForeignRef) -> Kind | None:
        """Ask the API for the group's preferred version and the kind's plural."""
        try:
            group = await self._client.document(f"/apis/{ref.group}")
            version = group["preferredVersion"]["version"]
            listed = await self._client.document(f"/apis/{ref.group}/{version}")
        except NotFoundError:
            return None
        for resource in listed.get("resources") or ():
            if (
                resource["kind"] == ref.kind
                and resource["namespaced"]
                and "/" not in resource["name"]
            ):
                return Kind(ref.group, version, resource["name"], ref.kind)
        return None
