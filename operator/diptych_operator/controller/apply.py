"""Brings one object of an Agent to what it is to be, whatever others have made of it.

Server-side apply merges with what others have set. The outcome can be invalid though the manifest
is fine: a port of the same name and another number then stands beside ours. So an object that the
Agent controls is overwritten when applying it is refused, once; what is refused then, too, is the
manifest's own fault, and nothing has changed.

Not here: which objects there are to be (`children`), whose they are (`reconcile`).
"""

import logging
from http import HTTPStatus

from diptych_operator.controller.store import World, controls
from diptych_operator.desired.drift import digest, has_drifted
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.errors import RefusedError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    DEPLOYMENT,
    MENDER,
    OWNED,
    Kind,
    Name,
    Object,
    kind_of,
    name_of,
)

_log = logging.getLogger(__name__)


class Applying:
    """Writes what differs, and remembers what the API made of it."""

    def __init__(self, cluster: Cluster, world: World) -> None:
        self._cluster = cluster
        self._world = world
        self._applied: dict[tuple[Kind, Name], tuple[str, str]] = {}

    def forget(self, name: Name) -> None:
        """Forget the objects of an agent that is gone."""
        for kind in OWNED:
            self._applied.pop((kind, name), None)

    async def bring(self, agent: Agent, child: Object, found: Object | None) -> None:
        """Make of an object what it is to be; `found` is how it is, if it is there.

        Raises `RefusedError` if the API does not take it in any way, and other `ClusterError`s.
        """
        kind, name = kind_of(child), name_of(child)
        if found is not None:
            version = found["metadata"].get("resourceVersion", "")
            if not has_drifted(found, child):
                return
            if self._applied.get((kind, name)) == (digest(child), version):
                return  # the API says the same in other words
        answer = await self._written(agent, child, found)
        self._world.put(kind, answer)
        self._applied[kind, name] = digest(child), answer["metadata"].get("resourceVersion", "")

    async def _written(self, agent: Agent, child: Object, found: Object | None) -> Object:
        if found is None:
            return await self._cluster.apply(child, None)
        try:
            if _was_overwritten(found):
                return await self._cluster.overwrite(found, child)
            return await self._cluster.apply(child, found["metadata"]["uid"])
        except RefusedError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or not controls(agent, found):
                raise
            return await self._mended(child, found, error)

    async def _mended(self, child: Object, found: Object, error: RefusedError) -> Object:
        kind, name = kind_of(child), name_of(child)
        if not _has_another_selector(found, child):
            answer = await self._cluster.overwrite(found, child)
            _log.warning("%s/%s: its %s was overwritten, as it said: %s", *name, kind.name, error)
            return answer
        if not await self._cluster.would_create(child):
            raise error
        await self._cluster.delete(kind, name, found["metadata"]["uid"])
        _log.warning("%s/%s: its %s had a foreign selector; made anew", *name, kind.name)
        return await self._cluster.apply(child, None)


def _was_overwritten(found: Object) -> bool:
    """Say whether a field may belong to `MENDER`: applying would not remove that any more."""
    return any(e.get("manager") == MENDER for e in found["metadata"].get("managedFields", ()))


def _has_another_selector(found: Object, child: Object) -> bool:
    """Say whether the one field differs that can never be changed, of all that are written."""
    if kind_of(child) is not DEPLOYMENT:
        return False
    return bool(found["spec"].get("selector") != child["spec"]["selector"])
