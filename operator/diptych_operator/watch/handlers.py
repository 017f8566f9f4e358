"""Kopf in, names of agents out: what the watches tell, and whom it concerns. Decides nothing.

Only `event` handlers are used: kopf then writes nothing on any object, neither finalizers nor
annotations. Its indices would give the whole picture before the first decision, but they cost the
square of the number of objects (40 s for 6,000), and a deletion that falls into a gap between two
watches is told to nobody; `listing` is for both.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import kopf

from diptych_operator.controller.store import World
from diptych_operator.controller.work_queue import Due
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.resources.kinds import KINDS, Kind, Name
from diptych_operator.watch.resync import selector, watched_kinds
from diptych_operator.watch.staleness import Silence


def registry_for(
    world: World, due: Due, connection: Connection, silence: Silence
) -> kopf.OperatorRegistry:
    """Make kopf's registry: a login, and for each kind what takes in its changes."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: object) -> kopf.AiohttpSession:
        session = connection.session(silence)
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    for kind in watched_kinds(world):
        _watch(registry, kind, world, due)
    return registry


def operator_settings() -> kopf.OperatorSettings:
    """Give kopf's settings (faults.md §6)."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 1
    settings.queueing.error_delays = (1, 2, 5, 10, 30)
    for kind in KINDS.values():
        if chosen := selector(kind):
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = chosen
    return settings


def _watch(registry: kopf.OperatorRegistry, kind: Kind, world: World, due: Due) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)
    async def changed(event: Mapping[str, Any], **_: object) -> None:
        content = event["object"]
        if event["type"] == "DELETED":
            concerned: Iterable[Name] = world.drop(kind, content)
        else:
            concerned = world.put(kind, content)
        for name in concerned:
            due.add(name)
