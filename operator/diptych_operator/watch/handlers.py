"""kopf's event handlers: an event goes into the cache, the affected Agents into the work queue.

From there `controller.reconciler.Workers` take them.

Only `event` handlers are used, so that kopf writes nothing on any object, neither finalizers nor
annotations. docs/decisions/0020 says why, and why kopf's indices are not used.
"""

from collections.abc import Mapping
from typing import Any

import kopf

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.kubernetes.connection import Connection, WatchObserver
from diptych_operator.resources.kinds import KINDS, Kind
from diptych_operator.watch.no_storage import NoDiffBase, NoProgress
from diptych_operator.watch.scope import label_selector, watched_kinds
from diptych_operator.watch.staleness import WatchStaleness


def registry_for(
    cache: ObjectCache,
    queue: WorkQueue,
    connection: Connection,
    staleness: WatchStaleness,
    on_gone: WatchObserver,
) -> kopf.OperatorRegistry:
    """Make kopf's registry: a login, and an event handler for each kind.

    `on_gone` is called with the path of a kind that the API no longer has: kopf drops its watch
    silently, and does not resume it when the kind is back.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: object) -> kopf.AiohttpSession:
        session = connection.session(staleness.note_data, on_gone)
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    for kind in watched_kinds(cache.watched_namespaces):
        _register(registry, kind, cache, queue)
    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Give kopf's settings (faults.md §6)."""
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
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
        if selector := label_selector(kind):
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings


def _register(
    registry: kopf.OperatorRegistry, kind: Kind, cache: ObjectCache, queue: WorkQueue
) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)
    async def on_event(event: Mapping[str, Any], **_: object) -> None:
        update = cache.remove if event["type"] == "DELETED" else cache.put
        affected_agents = update(kind, event["object"])
        for agent_name in affected_agents:
            queue.add(agent_name)
