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
from diptych.models.probe import EndpointFindings, probe_endpoint, probe_models, probe_tools
from diptych.policy.unmatched import Unmatched, unmatched
from diptych.serve.adapters import sign_ins

HTTP_SECONDS = 6.0  # for a tool server or an agent to be tried once
COMMAND_SECONDS = 60.0  # for a command, which may have to be downloaded first

_ModelKey: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ToolServerFindings:
    """A tool server's result: its problem, or its tools and the seconds they took.

    `left_out` has reasons for unusable tools; `cut` names tools with truncated descriptions.
    """

    name: str
    reason: str | None
    tools: tuple[str, ...]
    seconds: float
    left_out: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerFindings:
    """The result of reading an agent's card; `is_asked` is False for an agent of the same files."""

    name: str
    reason: str | None = None
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class AgentFindings:
    """The findings about an agent.

    `models` are the model and its fallbacks, in order. Empty if a script replaces the model.
    `unmatched` are manifest fields that name unknown tools or agents.
    """

    name: str
    models: tuple[EndpointFindings, ...]
    servers: tuple[ToolServerFindings, ...]
    peers: tuple[PeerFindings, ...]
    unmatched: tuple[Unmatched, ...] = ()


class Examiner:
    """Examines agents one after the other; a shared endpoint is asked once.

    `session` is from `open_http_session`; `own_urls` are URLs of the files' own agents, which are
    not served now.
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
        """Ask everything that an agent needs. Raises `ConfigError` if an endpoint is not a URL."""
        servers = [asyncio.create_task(examine_server(server)) for server in config.tools]
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

    async def examine_api(self, model: ModelConfig) -> EndpointFindings:
        """Ask a ModelAPI's endpoint; without a model's name only for its list of models."""
        if model.name:
            return await self._examine_model(model, ())
        return await probe_models(self._session, model)

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


async def examine_server(
    server: ToolServerConfig,
) -> tuple[ToolServerFindings, tuple[Tool, ...], tuple[Unavailable, ...]]:
    """Ask a tool server for its tools; also returns the usable ones, and what is not.

    One at which people sign in has no tools to show here, which is no fault.
    """
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    oauth = sign_ins(AgentConfig(server.name, tools=(server,)), "")
    async with McpTools([server], sign_ins=oauth) as connected:
        await connected.wait_for_first_attempt(COMMAND_SECONDS if server.command else HTTP_SECONDS)
        tools, unavailable = connected.snapshot()
        seconds = loop.time() - began_at
    names = tuple(tool.name for tool in tools)
    faults, left_out = list[str](), list[str]()
    for entry in unavailable:
        # Tools are named where they have changed since they were pinned: that is a fault.
        is_fault = not tools or entry.kind != "tool" or bool(entry.tools)
        is_fault = is_fault and not (server.auth and server.auth.is_personal)
        (faults if is_fault else left_out).append(entry.reason)
    reason, besides = next(iter(faults), None), tuple(left_out)
    cut = tuple(tool.name for tool in tools if is_shortened(tool.description))
    return ToolServerFindings(server.name, reason, names, seconds, besides, cut), tools, unavailable


async def _reasons(peers: Sequence[PeerConfig]) -> dict[str, str]:
    """Read the agents' cards; return why each unusable one is unusable."""
    from diptych.a2a.agents import A2aAgents  # noqa: PLC0415 - heavy, and only needed here

    agents = A2aAgents(peers, "")
    await agents.start()
    try:
        await agents.wait_for_first_attempt(HTTP_SECONDS)
        return {item.name: item.reason for item in agents.snapshot()[1]}
    finally:
        await agents.aclose()


def _key(model: ModelConfig) -> _ModelKey:
    """Return a key of everything about a model that can change its findings.

    `max_tokens` cannot: probes send their own.
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
