"""`diptych serve`: serves agents over HTTP until a signal ends it."""

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import ApiPages, Open, Secrets, Services
from diptych.cli.environment import local_options
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.output.screen import Part
    from diptych.manifest.settings import AgentConfig, ProcessSettings
    from diptych.serve.hosted_agent import HostedAgent
    from diptych.serve.process import Sockets

_logger = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"


def serve(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files with Agents; else the environment is read."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; :: is all, for containers.")
    ] = _LOOPBACK,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The first agent's port, the others get those after it; 0 takes free ones. "
            "Else PORT, else 8000.",
        ),
    ] = None,
    secrets: Secrets = None,
    service: Services = None,
    is_open: Open = False,
    has_docs: ApiPages = False,
) -> None:
    """Serve every Agent of the files, one port each.

    Without a file the agent is made of AGENT_NAME, MODEL_API_URL, MCP_SERVERS …, as in a plain
    container. On loopback everybody may do everything; at any other address callers must say who
    they are, by a key or token of `spec.access`, unless --open is given. METRICS_PORT takes the
    metrics to a port of their own.

    On Ctrl-C or SIGTERM it takes no new runs; those that go on have SHUTDOWN_GRACE_SECONDS (20).

    Example: `diptych serve agent.yaml --port 8080`
    """
    gc.disable()  # what is imported is no garbage; what serves collects again
    from diptych.manifest.environment import process_settings
    from diptych.manifest.loader import config_from_environment, load_agents
    from diptych.manifest.settings import opened
    from diptych.serve.logs import set_up_logging
    from diptych.serve.process import ListenAddress, Sockets

    settings = process_settings(os.environ)
    if not (files or os.environ.get("AGENT_NAME", "").strip()):
        raise ConfigError(
            "give a file: diptych serve agent.yaml; a container without one sets AGENT_NAME, "
            "MODEL_API_URL and MODEL_NAME"
        )
    loaded = load_agents(files, local_options(secrets, service)) if files else None
    from_environment = [] if loaded else [config_from_environment(os.environ)]
    count = len(loaded.names) if loaded else 1
    set_up_logging(settings.log_level, settings.log_format)
    _log_notes(loaded.notes if loaded else ())
    sockets = Sockets(ListenAddress(host, settings.port if port is None else port), count)
    configs = loaded.resolve(sockets.urls) if loaded else from_environment
    configs = [opened(config) for config in configs] if is_open else configs
    _serve(configs, sockets, settings, has_docs=has_docs)


def _serve(
    configs: "Sequence[AgentConfig]",
    sockets: "Sockets",
    settings: "ProcessSettings",
    *,
    has_docs: bool,
) -> None:
    from diptych.cli.exits import loop_factory
    from diptych.serve.process import ListenAddress, ServeOptions, Sockets, serve_until_signal

    metrics_sockets = None
    if (at := settings.metrics_port) is not None:
        address = ListenAddress(sockets.address.host, at, "METRICS_PORT")
        metrics_sockets = Sockets(address, len(configs))
    log_addresses = partial(_log_addresses, sockets.addresses)
    announce = log_addresses if settings.log_format == "json" else _print_addresses
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        serving = serve_until_signal(
            configs,
            sockets,
            announce,
            grace=settings.shutdown_grace,
            options=ServeOptions(
                settings.memory_limit, has_docs, metrics_sockets, settings.telemetry
            ),
        )
        runner.run(serving)


def _log_notes(notes: Sequence[str]) -> None:
    """Log what files and environment hold that has no effect."""
    from diptych.manifest.telemetry import read_telemetry

    for note in notes:
        _logger.info("%s", note)
    for problem in read_telemetry(os.environ)[1]:
        _logger.warning("%s", problem)


async def _log_addresses(addresses: Sequence[str], agents: Sequence["HostedAgent"]) -> None:
    """Log where the agents listen, for collectors of JSON logs."""
    from diptych.cli.output.wording import unavailable_text

    for agent, address in zip(agents, addresses, strict=True):
        await agent.wait_for_first_connect()
        now = agent.readiness()
        _logger.info("agent %s listens at %s", agent.name, address)
        for unavailable in now.unavailable:
            _logger.warning("agent %s is without %s", agent.name, unavailable_text(unavailable))
        for note in now.notes:
            _logger.info("agent %s: %s", agent.name, note)


async def _print_addresses(agents: Sequence["HostedAgent"]) -> None:
    """Print where the agents listen and how to ask one, for people."""
    for agent in agents:
        await agent.wait_for_first_connect()
    with contextlib.suppress(OSError):  # they serve, even where nobody can be told
        _print_agents(agents)


def _print_agents(agents: Sequence["HostedAgent"]) -> None:
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.wording import unavailable_text

    screen = Screen()
    width = max(len(agent.name) for agent in agents)
    for agent in agents:
        now = agent.readiness()
        parts: list[Part] = [("● ", "green"), (f"{agent.name:<{width}}  ", "bold"), agent.url]
        if now.unavailable:
            parts.append(
                ("  without " + "; ".join(map(unavailable_text, now.unavailable)), "yellow")
            )
        screen.print_line(*parts)
    notes = dict.fromkeys(note for agent in agents for note in agent.readiness().notes)
    for note in notes:
        screen.print_line((f"  {note}", "dim"))
    for line in _usage_lines(agents[0].url):
        screen.print_line(line)


def _usage_lines(url: str) -> Sequence[str]:
    body = '{"messages": [{"role": "user", "content": "Hello!"}]}'
    return (
        "",
        f"  ask:    diptych chat {url}, or {url}/ in a browser",
        f"  or:     curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f"  watch:  diptych events {url}",
        "  end:    Ctrl-C",
    )
