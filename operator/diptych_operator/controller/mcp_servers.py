"""Reconciles MCPServers: their children, and what their status says."""

from collections.abc import Callable
from functools import partial

from diptych_operator.controller.apply import Answers, Applier
from diptych_operator.controller.attempts import Attempts
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.obstacles import Rejected
from diptych_operator.controller.status_writer import StatusWriter
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.children import Platform
from diptych_operator.desired.mcp_server import server_children
from diptych_operator.desired.network_policy import pods_of
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    MCP_SERVER,
    NamespacedName,
    ObjectKey,
    kind_of,
)
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.resources.owner import ManifestError
from diptych_operator.status.condition import Problem
from diptych_operator.status.mcp_server import ServerInputs, handshake_of, mcp_server_status


class McpServerReconciler:
    """Makes the cluster match the MCPServers."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        platform: Platform,
        now: Callable[[], str],
    ) -> None:
        """`now` returns the time as the API writes it, in whole seconds."""
        self._cache = cache
        self._claims = claims
        self._platform = platform
        answers = Answers(cache, queue)
        self._status_writer = StatusWriter(client, cache, answers, now)
        self._applier = Applier(client, cache, answers, platform.pods.locked)
        self._attempts = Attempts()

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile an MCPServer, as `workers.Reconcile` does."""
        key = ObjectKey(MCP_SERVER, *name)
        server = self._cache.mcp_server(name)
        if server is None or server.is_terminating:  # the garbage collector deletes its children
            self._forget(key)
            return None
        if not await self._claims.claim(name[0]):
            return None
        users = self._cache.users(server)
        outcome = await self._attempts.outcome(server, self._make_children(server, users))
        pods = self._cache.pods(key)
        inputs = ServerInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            deployment=self._cache.deployment(server),
            pods=pods,
            start_problem=self._cache.start_problems.get(key),
            handshake=(
                handshake_of(self._cache.answers.get(key, {}), pods)
                if server.runs_our_image
                else self._cache.handshakes.get(key)
            ),
            agents=len(users),
        )
        again = await self._status_writer.write(server, partial(mcp_server_status, server, inputs))
        if outcome.failure:
            raise outcome.failure
        return min(filter(None, (again, outcome.retry_after)), default=None)

    async def _make_children(self, server: McpServer, users: tuple[Agent, ...]) -> None:
        peers = [
            pods_of(agent.namespace, labels)
            for agent in users
            for labels in self._cache.pod_selectors(agent)
        ]
        try:
            children = server_children(server, peers, self._platform)
        except ManifestError as error:
            raise Rejected(Problem(error.reason, f"{error}.")) from error
        live = await self._applier.find_live(server, children)
        obstacle = await self._applier.apply_all(server, children, live)
        has_source = any(kind_of(child) is CONFIG_MAP for child in children)
        sources = () if has_source else self._cache.config_maps(server)
        surplus = [(CONFIG_MAP, live, "the server has no Python code") for live in sources]
        await self._applier.delete_surplus(server, children, surplus)
        if obstacle:
            raise obstacle

    def _forget(self, key: ObjectKey) -> None:
        self._cache.forget(key)
        self._applier.forget(key)
        self._status_writer.forget(key)
        self._attempts.forget(key)
