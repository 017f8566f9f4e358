"""Examines an agent without serving it: asks its models, its tool servers and the other agents."""

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import aiohttp

from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.model_request import FunctionTool
from diptych.core.text import is_shortened
from diptych.manifest.settings import (
    AgentConfig,
    ModelConfig,
    PeerConfig,
    ToolServerConfig,
)
from diptych.mcp import McpTools
from diptych.models.probe import EndpointFindings, probe_endpoint, probe_tools
from diptych.policy.unmatched import Unmatched, unmatched

HTTP_SECONDS = 6.0  # for a tool server or an agent to be tried once
COMMAND_SECONDS = 60.0  # for a command, which may have to be downloaded first

_ModelKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ToolServerFindings:
    """What one tool server said: why it cannot be used, or its tools and the seconds it took.

    `left_out` has the reasons for tools that cannot be used; `cut` names the tools whose
    descriptions were too long.
    """

    name: str
    reason: str | None
    tools: tuple[str, ...]
    seconds: float
    left_out: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerFindings:
    """What became of reading an agent's card; `is_asked` is False for one of the same files."""

    name: str
    reason: str | None = None
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class AgentFindings:
    """What was found out about an agent; `models` are the model and its fallbacks, in order.

    There are none if a script answers in the model's place. `unmatched` are the manifest's fields
    that name tools or agents which nothing offers.
    """

    name: str
    models: tuple[EndpointFindings, ...]
    servers: tuple[ToolServerFindings, ...]
    peers: tuple[PeerFindings, ...]
    unmatched: tuple[Unmatched, ...] = ()


class Examiner:
    """Examines agents one after the other; an endpoint that several have is asked once.

    `session` is from `open_http_session`; `own_urls` are those of agents that are not served now.
    """

    def __init__(self, session: aiohttp.ClientSession, own_urls: Collection[str]) -> None:
        self._session = session
        self._own_urls = own_urls
        self._known: dict[_ModelKey, EndpointFindings] = {}

    @property
    def requests(self) -> int:
        """How many requests models were sent."""
        return sum(found.requests for found in self._known.values())

    @property
    def tokens(self) -> int:
        """How many tokens they cost, as far as the endpoints say."""
        return sum(found.tokens for found in self._known.values())

    async def examine(self, config: AgentConfig) -> AgentFindings:
        """Ask all that an agent needs. Raises `ConfigError` if an endpoint is no URL."""
        servers = [asyncio.create_task(_examine_server(server)) for server in config.tools]
        peers = asyncio.create_task(self._examine_peers(config.agents))
        try:
            found = [await server for server in servers]
            catalog = Catalog(
                tuple(tool for _, offered, _ in found for tool in offered),
                tuple(Peer(peer.name, "") for peer in config.agents),
                tuple(away for _, _, unavailable in found for away in unavailable),
            )
            functions = replace(catalog, agents=()).functions.tools
            without_effect = unmatched(config.named_calls, catalog)
            models: list[EndpointFindings] = []
            if config.model is not None and config.mock_responses is None:
                for model in (config.model, *config.model.fallbacks):
                    models.append(await self._examine_model(model, functions))  # noqa: PERF401 - in turn
            about = tuple(findings for findings, _, _ in found)
            return AgentFindings(config.name, tuple(models), about, await peers, without_effect)
        finally:
            for task in (*servers, peers):
                task.cancel()

    async def _examine_model(
        self, model: ModelConfig, functions: tuple[FunctionTool, ...]
    ) -> EndpointFindings:
        key = _key(model)
        if key not in self._known:
            self._known[key] = await probe_endpoint(self._session, model)
        known = self._known[key]
        if not functions or known.tools is None or not known.tools.is_taken:
            return known
        schemas = (*key, *((f.name, f.description, json.dumps(f.parameters)) for f in functions))
        if schemas not in self._known:
            self._known[schemas] = await probe_tools(self._session, model, functions, known)
        return self._known[schemas]

    async def _examine_peers(self, peers: Sequence[PeerConfig]) -> tuple[PeerFindings, ...]:
        others = [peer for peer in peers if peer.url not in self._own_urls]
        reasons = await _reasons(others) if others else {}
        return tuple(
            PeerFindings(peer.name, reasons.get(peer.name))
            if peer in others
            else PeerFindings(peer.name, is_asked=False)
            for peer in peers
        )


async def _examine_server(
    server: ToolServerConfig,
) -> tuple[ToolServerFindings, tuple[Tool, ...], tuple[Unavailable, ...]]:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    async with McpTools([server]) as connected:
        await connected.wait_for_first_attempt(COMMAND_SECONDS if server.command else HTTP_SECONDS)
        tools, unavailable = connected.snapshot()
        seconds = loop.time() - began_at
    names = tuple(tool.name for tool in tools)
    faults, left_out = list[str](), list[str]()
    for entry in unavailable:
        # Tools are named where they have changed since they were pinned: that is a fault.
        is_fault = not tools or entry.kind != "tool" or entry.tools
        (faults if is_fault else left_out).append(entry.reason)
    reason, besides = next(iter(faults), None), tuple(left_out)
    cut = tuple(tool.name for tool in tools if is_shortened(tool.description))
    return ToolServerFindings(server.name, reason, names, seconds, besides, cut), tools, unavailable


async def _reasons(peers: Sequence[PeerConfig]) -> dict[str, str]:
    """Read the agents' cards; say for each that cannot be used why."""
    from diptych.a2a.agents import A2aAgents  # noqa: PLC0415 - heavy, and only needed here

    agents = A2aAgents(peers, "")
    await agents.start()
    try:
        await agents.wait_for_first_attempt(HTTP_SECONDS)
        return {item.name: item.reason for item in agents.snapshot()[1]}
    finally:
        await agents.aclose()


def _key(model: ModelConfig) -> _ModelKey:
    """Tell models apart by all that may change what is found out about them.

    `max_tokens` does not: a probe sends its own.
    """
    return (
        model.name,
        model.endpoint,
        model.api_key and model.api_key(),
        tuple((name, read()) for name, read in model.headers.items()),
        model.temperature,
        model.reasoning_effort,
        model.timeouts,
    )
