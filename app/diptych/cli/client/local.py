"""Serves the agents of a file in this process, on free loopback ports, while a block lasts."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import typer
from yarl import URL

from diptych.cli.client.remote import RemoteAgent, agent_at
from diptych.core.errors import ConfigError
from diptych.manifest import API_VERSION, KIND
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.loader import LoadedAgents, LocalOptions, load_agents, load_content
from diptych.manifest.telemetry import read_telemetry
from diptych.serve.hosted_agent import HostedAgent
from diptych.serve.local_agents import serve_on_loopback
from diptych.serve.process import make_undumpable

SAY_AFTER_SECONDS = 3.0


@asynccontextmanager
async def local_agents(loaded: LoadedAgents) -> AsyncIterator[Sequence[HostedAgent]]:
    """Serve all agents; yields them once each has tried to reach its tools and agents."""
    make_undumpable()
    for note in read_telemetry(os.environ)[1]:
        typer.echo(note, err=True)
    async with serve_on_loopback(loaded) as agents:
        for problem in dict.fromkeys(agent.data_problem for agent in agents if agent.data_problem):
            typer.echo(problem, err=True)
        loop = asyncio.get_running_loop()
        hint = loop.call_later(SAY_AFTER_SECONDS, _say_what_is_awaited, agents)
        try:
            await asyncio.gather(*(agent.wait_until_tried() for agent in agents))
        finally:
            hint.cancel()
        yield agents


@asynccontextmanager
async def agent_of_file(
    file: Path, name: str | None, options: LocalOptions
) -> AsyncIterator[RemoteAgent]:
    """Serve a file's agents; yields a client of the one called `name`, else of the first.

    Raises `ConfigError`.
    """
    loaded = load_agents([file], replace(options, asked=name))
    if name is not None and name not in loaded.names:
        names = ", ".join(loaded.names)
        raise ConfigError(f"--agent {name}: {file} has no Agent of that name; it has {names}")
    async with _asked(loaded, name or loaded.names[0]) as client:
        yield client


@asynccontextmanager
async def agent_of_model(
    model: Mapping[str, Any] | None, options: LocalOptions
) -> AsyncIterator[RemoteAgent]:
    """Serve an agent without tools that asks a model; yields a client of it.

    `model` is `spec.model`; None leaves the answers to DEBUG_MOCK_RESPONSES. Raises `ConfigError`.
    """
    variables: dict[FieldPath, str] = {("spec", "model"): "model"}
    content: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "assistant"},
        "spec": {"loop": {"answerMode": "direct"}} | ({"model": model} if model else {}),
    }
    loaded = load_content(content, SourceLocation("", variables), options)
    async with _asked(loaded, loaded.names[0]) as client:
        if model:
            client.name = f"{model['provider']}:{model['name']}"
        yield client


@asynccontextmanager
async def _asked(loaded: LoadedAgents, name: str) -> AsyncIterator[RemoteAgent]:
    async with local_agents(loaded) as agents:
        asked = next(agent for agent in agents if agent.name == name)
        async with agent_at(asked.url, httpx.Auth()) as client:  # nobody is asked who they are
            client.name = asked.name
            _describe(client, loaded, name)
            yield client


def _describe(client: RemoteAgent, loaded: LoadedAgents, name: str) -> None:
    """Tell a client which model its agent asks, and where its tool servers are."""
    configs = loaded.resolve(["http://127.0.0.1:0"] * len(loaded.names))
    config = next(config for config in configs if config.name == name)
    client.server_urls = {tool.name: tool.url for tool in config.tools if tool.url}
    if config.mock_responses is not None or config.model is None:
        client.model = "the script"
    else:
        client.model = f"{config.model.name} at {URL(config.model.endpoint).origin()}"


def _say_what_is_awaited(agents: Sequence[HostedAgent]) -> None:
    late = {u.name for a in agents for u in a.readiness().unavailable if u.kind == "server"}
    typer.echo(f"Waiting for {', '.join(sorted(late)) or 'agents'} to start …", err=True)
