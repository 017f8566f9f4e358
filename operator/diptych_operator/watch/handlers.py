"""kopf's event handlers: an event goes into the cache, the affected owners into the work queue.

Only `event` handlers are used, so that kopf writes nothing on any object, neither finalizers nor
annotations. docs/decisions/0020 says why, and why kopf's indices are not used.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import kopf

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.kubernetes.connection import Connection, WatchObserver
from diptych_operator.resources.kinds import (
    CHILD_KINDS,
    CONFIG_MAP,
    CRON_JOB,
    JOB,
    KINDS,
    NAMESPACE,
    OPERATOR_NAME,
    POD,
    ROUTE_KINDS,
    SERVICE,
    Kind,
)
from diptych_operator.resources.labels import MANAGED_BY
from diptych_operator.resources.owners import OWNERS
from diptych_operator.watch.staleness import WatchStaleness


class _NoDiffBase(kopf.DiffBaseStorage):
    """Stores no diff base; kopf would copy each object of each event to compare it."""

    def build(self, **_: object) -> kopf.BodyEssence:
        return {}

    def fetch(self, **_: object) -> None: ...

    def store(self, **_: object) -> None: ...


class _NoProgress(kopf.ProgressStorage):
    """Keeps nothing: event handlers have no progress."""

    def fetch(self, **_: object) -> None: ...

    def store(self, **_: object) -> None: ...

    def purge(self, **_: object) -> None: ...

    def touch(self, **_: object) -> None: ...

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


_OWN_OBJECTS_ONLY = (
    *(kind for kind in CHILD_KINDS if kind is not SERVICE),
    *(*ROUTE_KINDS, CONFIG_MAP, JOB, CRON_JOB, POD),
)
"""Kinds of which only objects with the operator's label are watched. A Service of somebody else may
be one that an Agent refers to."""


def watched_kinds(namespaces: frozenset[str] | None) -> tuple[Kind, ...]:
    """Return the kinds to watch. An operator of some namespaces has no right to read Namespaces."""
    kinds = (*OWNERS, *CHILD_KINDS, CONFIG_MAP, JOB, CRON_JOB, POD)
    return kinds if namespaces is not None else (*kinds, NAMESPACE)


def watched_paths(namespaces: frozenset[str] | None) -> Iterator[str]:
    """Return the API paths to watch."""
    for kind in watched_kinds(namespaces):
        for namespace in namespaces or ("",):
            yield kind.path(namespace)


def label_selector(kind: Kind) -> str:
    """Return the label selector for a kind; empty for all objects."""
    return f"{MANAGED_BY}={OPERATOR_NAME}" if kind in _OWN_OBJECTS_ONLY else ""


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
    """Return kopf's settings (faults.md §6)."""
    settings = kopf.OperatorSettings()
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
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
        for owner in update(kind, event["object"]):
            queue.add(owner)
