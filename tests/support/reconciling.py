"""An operator without watches: an API in this process, and a reconcile when a test asks for it."""

import contextlib
from dataclasses import dataclass, field

from support.agents import PLATFORM
from support.kubernetes import KubernetesApi

from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.reconciler import Reconciler
from diptych_operator.controller.store import World
from diptych_operator.controller.work_queue import Due
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.kubernetes.errors import ClusterError
from diptych_operator.resources.kinds import AGENT
from diptych_operator.watch.resync import Listing

NAME = ("team", "coordinator")
NOW = "2026-11-21T12:00:00Z"


@dataclass
class Setting:
    """An API, and an operator that is told of everything before each reconcile."""

    api: KubernetesApi
    cluster: Cluster
    world: World = field(default_factory=World)

    def __post_init__(self):
        self.reconciler = Reconciler(self.cluster, self.world, PLATFORM, lambda: NOW)

    async def look(self):
        await Listing(self.cluster, self.world, Due()).refresh()

    async def reconcile(self, name=NAME):
        await self.look()
        return await self.reconciler.reconcile(name)

    async def until_done(self, tries=30):
        """Reconcile every agent until nothing fails and nothing is written any more."""
        for _ in range(tries):
            before = len(self.api.writes)
            failed = False
            with contextlib.suppress(ClusterError):
                await self.look()
            for name in list(self.world.agents()):
                try:
                    await self.reconciler.reconcile(name)
                except ClusterError:
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
        return sorted(content["metadata"]["name"] for content in self.api.all(kind))

    def writes(self):
        return [(method, path.split("/")[-2:]) for method, path, _ in self.api.writes]


@contextlib.asynccontextmanager
async def served(api=None):
    api = api or KubernetesApi()
    async with api.served():
        connection = Connection(api.url, True, lambda: None)
        async with Cluster(connection, Metrics()) as cluster:
            yield Setting(api, cluster)
