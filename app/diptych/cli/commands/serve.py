"""`diptych serve`: serves agents over HTTP until a signal ends it."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.client.target import local_options
from diptych.cli.commands.options import Data, Secrets, Services
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.manifest.loader import LocalOptions
    from diptych.serve.hosted_agent import HostedAgent

_logger = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
_USAGE = """
  ask:    diptych chat {url}, or {url}/ in a browser
  or:     curl {url}/v1/chat/completions -H 'Content-Type: application/json' \
-d '{{"messages": [{{"role": "user", "content": "Hello!"}}]}}'
  watch:  diptych events {url}
  end:    Ctrl-C"""


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
    data: Data = None,
    is_open: Annotated[
        bool, typer.Option("--open", help="Let everybody who reaches the agents do everything.")
    ] = False,
    has_docs: Annotated[
        bool, typer.Option("--docs", help="Show the API for people, at /docs and /redoc.")
    ] = False,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Start again when a file, or one that a tool's command names, has changed.",
        ),
    ] = False,
) -> None:
    """Serve every Agent of the files, one port each; the first port answers for all.

    Without a file the agent is made of AGENT_NAME, MODEL_API_URL, MCP_SERVERS …, as in a plain
    container. On loopback everybody may do everything; at any other address callers must say who
    they are, by a key or token of `spec.access`, unless --open is given. METRICS_PORT takes the
    metrics to a port of their own.

    Sessions are kept in a folder (--data) and continued by the next process, unless the Agent has a
    Redis. On Ctrl-C or SIGTERM it takes no new runs; those that go on have SHUTDOWN_GRACE_SECONDS
    (20).

    Example: `diptych serve agent.yaml --port 8080`
    """
    gc.disable()  # imports leave no garbage; serving enables it again
    from diptych.cli.data import data_folder
    from diptych.manifest.environment import process_settings
    from diptych.manifest.loader import config_from_environment, load_agents
    from diptych.manifest.settings import opened
    from diptych.serve.logs import set_up_logging
    from diptych.serve.process import ListenAddress, Sockets, serve_until_signal

    if reload:
        _serve_with_reload(files or [], local_options(secrets, service), port)
    settings = process_settings(os.environ)
    if not (files or os.environ.get("AGENT_NAME", "").strip()):
        raise ConfigError(
            "give a file: diptych serve agent.yaml; a container without one sets AGENT_NAME, "
            "MODEL_API_URL and MODEL_NAME"
        )
    folder = data_folder(data, files or ())
    loaded = load_agents(files, local_options(secrets, service, folder)) if files else None
    from_environment = [] if loaded else [config_from_environment(os.environ, folder)]
    set_up_logging(settings.log_level, settings.log_format)
    _log_notes(loaded.notes if loaded else ())
    address = ListenAddress(host, settings.port if port is None else port)
    sockets = Sockets(address, len(loaded.names) if loaded else 1)
    configs = loaded.resolve(sockets.urls) if loaded else from_environment
    configs = [opened(config) for config in configs] if is_open else configs
    metrics = None
    if settings.metrics_port is not None:
        metrics = Sockets(ListenAddress(host, settings.metrics_port, "METRICS_PORT"), len(configs))
    log_addresses = partial(_log_addresses, sockets.addresses)
    serving = serve_until_signal(
        configs,
        sockets,
        log_addresses if settings.log_format == "json" else _print_addresses,
        settings,
        metrics=metrics,
        has_docs=has_docs,
    )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serving)


def _serve_with_reload(files: Sequence[Path], options: "LocalOptions", port: int | None) -> None:
    from diptych.cli.commands.reload import free_port, serve_with_reload
    from diptych.manifest.environment import process_settings

    if not files:
        raise ConfigError("--reload watches files: give one, as in diptych serve agent.yaml")
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    if (port if port is not None else process_settings(os.environ).port) == 0:
        arguments.append(f"--port={free_port()}")
    raise typer.Exit(serve_with_reload(files, options, arguments))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory where uvloop is installed; None means asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _log_notes(notes: Sequence[str]) -> None:
    """Log the parts of files and environment that have no effect."""
    for note in notes:
        _logger.info("%s", note)
    log_unknown_telemetry()


def log_unknown_telemetry() -> None:
    """Log the variables OTEL_* that have no effect."""
    from diptych.manifest.telemetry import read_telemetry

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
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.wording import unavailable_text

    for agent in agents:
        await agent.wait_for_first_connect()
    screen = Screen()
    width = max(len(agent.name) for agent in agents)
    with contextlib.suppress(OSError):  # they serve, even if nobody reads this
        for agent in agents:
            without = "; ".join(map(unavailable_text, agent.readiness().unavailable))
            screen.print_line(
                ("● ", "green"),
                (f"{agent.name:<{width}}  ", "bold"),
                agent.url,
                (f"  without {without}" if without else "", "yellow"),
            )
        for note in dict.fromkeys(note for agent in agents for note in agent.readiness().notes):
            screen.print_line((f"  {note}", "dim"))
        if len(agents) > 1:
            screen.print_line((f"  {agents[0].url} answers for all: model names the agent", "dim"))
        screen.print_line(_USAGE.format(url=agents[0].url))
