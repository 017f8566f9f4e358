"""Reconciles MCPServers: their children, and what their status says."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from diptych_operator.controller.attempts import Outcome
from diptych_operator.controller.obstacles import as_rejection
from diptych_operator.controller.owner_reconciler import OwnerReconciler
from diptych_operator.desired.mcp_server import server_children
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import CONFIG_MAP, kind_of
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.status.mcp_server import ServerInputs, handshake_of, mcp_server_status

_Users: TypeAlias = tuple[Agent, ...]


class McpServerReconciler(OwnerReconciler[McpServer, _Users]):
    """Makes the cluster match the MCPServers."""

    owner_type = McpServer

    async def _observe(self, owner: McpServer) -> _Users:
        return self._cache.users(owner)

    def _status(
        self, owner: McpServer, state: _Users, outcome: Outcome
    ) -> Callable[[str], Mapping[str, Any]]:
        pods = self._cache.pods(owner.key)
        inputs = ServerInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            deployments=[self._cache.deployment(owner)] if owner.is_hosted else [],
            pods=pods,
            start_problem=self._cache.start_problems.get(owner.key),
            handshake=(
                handshake_of(self._cache.answers.get(owner.key, {}), pods)
                if owner.runs_our_image
                else self._cache.handshakes.get(owner.key)
            ),
            agents=len(state),
        )
        return partial(mcp_server_status, owner, inputs)

    async def _make_children(self, owner: McpServer, state: _Users) -> None:
        with as_rejection():
            children = server_children(owner, self._peers_of(state), self._platform)
        has_source = any(kind_of(child) is CONFIG_MAP for child in children)
        sources = () if has_source else self._cache.config_maps(owner)
        surplus = [(CONFIG_MAP, live, "the server has no Python code") for live in sources]
        if obstacle := await self._apply(owner, children, surplus):
            raise obstacle
