"""An operator without watches: a test lists everything and reconciles when it wants to."""

import contextlib
from dataclasses import dataclass, field

from support.agents import PLATFORM
from support.kubernetes import KubernetesApi

from diptych_operator.controller.agents import AgentReconciler
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.mcp_servers import McpServerReconciler
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.model_apis import ModelApiReconciler
from diptych_operator.controller.pool_handover import PoolHandover
from diptych_operator.controller.pool_places import PoolPlaces
from diptych_operator.controller.pool_reconciler import PoolReconciler
from diptych_operator.controller.readiness_poll import StatusTokens
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.children import Platform
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    CONFIG_MAP,
    MCP_SERVER,
    MODEL_API,
    ObjectKey,
)
from diptych_operator.watch.resync import Resync

NAME = ("team", "coordinator")
KEY = ObjectKey(AGENT, *NAME)
NOW = "2026-11-21T12:00:00Z"


class Clock:
    """The time that a status is written at."""

    now = NOW


class AllNamespaces:
    """The claims of an operator that is alone; `test_claims.py` has the true ones."""

    async def claim(self, namespace):
        return True

    def holds(self, namespace):
        return True


@dataclass
class Harness:
    """An API, and the operator's controller, whose store is complete before each reconcile."""

    api: KubernetesApi
    client: KubernetesClient
    cache: ObjectCache | None = None
    queue: WorkQueue = field(default_factory=WorkQueue)
    claims: AllNamespaces | NamespaceClaims = field(default_factory=AllNamespaces)
    platform: Platform = PLATFORM

    def __post_init__(self):
        self.cache = self.cache or ObjectCache()
        client, cache = self.client, self.cache
        self.clock = Clock()
        self.issuer = ClusterIssuer(client, cache, self.queue)
        self.handover = PoolHandover(cache, self.queue, StatusTokens(client, None))
        given = (
            client,
            cache,
            self.queue,
            self.claims,
            self.issuer,
            self.platform,
            lambda: self.clock.now,
        )
        places = PoolPlaces(cache, self.queue, self.handover, self.platform)
        self.reconciler = AgentReconciler(*given, metrics=Metrics(), pools=places)
        pools = PoolReconciler(*given, handover=self.handover)
        self.servers = McpServerReconciler(*given)
        self.apis = ModelApiReconciler(*given)
        self.reconcilers = {
            AGENT: self.reconciler.reconcile,
            MODEL_API: self.apis.reconcile,
            MCP_SERVER: self.servers.reconcile,
            AGENT_POOL: pools.reconcile,
        }

    async def observe(self):
        """List everything into the store."""
        await Resync(self.client, self.cache, WorkQueue()).list_all()

    async def reconcile(self, name=NAME):
        await self.observe()
        return await self.reconciler.reconcile(name)

    async def until_done(self, tries=30):
        """Reconcile every owner until nothing fails and nothing is written any more."""
        for _ in range(tries):
            before = len(self.api.writes)
            failed = False
            with contextlib.suppress(ApiError):
                await self.observe()
            for key in list(self.cache.owner_keys()):
                try:
                    await self.reconcilers[key.kind](key.namespaced_name)
                except ApiError:
                    failed = True
            if not failed and len(self.api.writes) == before:
                return
        raise AssertionError("it never comes to rest")

    def conditions(self, name=NAME):
        status = self.api.get(AGENT, name).get("status", {})
        return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", ())}

    def message(self, kind, name=NAME):
        conditions = self.api.get(AGENT, name)["status"]["conditions"]
        return next(c["message"] for c in conditions if c["type"] == kind)

    def names(self, kind):
        """Name the objects of a kind; of ConfigMaps, those with manifests."""
        names = [content["metadata"]["name"] for content in self.api.all(kind)]
        return sorted(name for name in names if not (kind is CONFIG_MAP and _is_access(name)))

    def writes(self):
        return [(method, path.split("/")[-2:]) for method, path, _ in self.api.writes]


def _is_access(name):
    return name.endswith("-access")


@contextlib.asynccontextmanager
async def served(api=None, platform=PLATFORM):
    api = api or KubernetesApi()
    async with api.served():
        connection = Connection(api.url, True, lambda: None)
        async with KubernetesClient(connection, Metrics().count_request) as client:
            yield Harness(api, client, platform=platform)
