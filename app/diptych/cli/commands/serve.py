"""`diptych serve`: serves agents over HTTP until a signal ends it.

Not here: binding sockets and shutting down (`serve.server`), logging (`serve.logs`).
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import Secrets, Services
from diptych.cli.environment import local_options, process_environment

if TYPE_CHECKING:
    from diptych.cli.output.screen import Part
    from diptych.serve.server import ServedAgent

_logger = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"


def serve(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files with Agents; else the environment is read."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 is all, for containers.")
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
) -> None:
    """Serve every Agent of the files, one port each.

    References between the Agents lead to those ports. Without a file the agent is made of
    AGENT_NAME, MODEL_API_URL, MODEL_NAME, MCP_SERVERS …, as in a plain container.

    On Ctrl-C or SIGTERM it takes no new runs. Those that go on have SHUTDOWN_GRACE_SECONDS (20)
    to end; what is left then is handed over, if there is a store.

    Example: `diptych serve agent.yaml --port 8080`
    """
    from diptych.cli.signals import loop_factory
    from diptych.config.environment import process_settings
    from diptych.config.loader import LoadedAgents, config_from_environment, load_agents
    from diptych.serve.logs import set_up_logging
    from diptych.serve.server import ListenAddress, Sockets, serve_until_signal

    settings = process_settings(process_environment())
    loaded: LoadedAgents | None = None
    if files:
        loaded = load_agents(files, local_options(secrets, service))
        count = len(loaded.names)
    else:
        env_config, count = config_from_environment(os.environ), 1
    set_up_logging(settings.log_level, settings.log_format)
    sockets = Sockets(ListenAddress(host, settings.port if port is None else port), count)
    configs = loaded.resolve(sockets.urls) if loaded else (env_config,)
    announce = _log_addresses if settings.log_format == "json" else _print_addresses
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        serving = serve_until_signal(configs, sockets, announce, grace=settings.shutdown_grace)
        runner.run(serving)


async def _log_addresses(sites: Sequence["ServedAgent"]) -> None:
    """Log where the agents listen, for collectors of JSON logs."""
    from diptych.cli.output.wording import unavailable_text

    for site in sites:
        await site.agent.wait_for_first_connect()
        now = site.agent.readiness()
        _logger.info("agent %s listens at %s", site.agent.name, site.url)
        for missing in now.missing:
            _logger.warning("agent %s is without %s", site.agent.name, unavailable_text(missing))
        for note in now.notes:
            _logger.info("agent %s: %s", site.agent.name, note)


async def _print_addresses(sites: Sequence["ServedAgent"]) -> None:
    """Print where the agents listen and how to ask one, for people."""
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.wording import unavailable_text

    screen = Screen()
    for site in sites:
        await site.agent.wait_for_first_connect()
    width = max(len(site.agent.name) for site in sites)
    for site in sites:
        now = site.agent.readiness()
        parts: list[Part] = [("● ", "green"), (f"{site.agent.name:<{width}}  ", "bold"), site.url]
        if now.missing:
            parts.append(("  without " + "; ".join(map(unavailable_text, now.missing)), "yellow"))
        screen.print_line(*parts)
    notes = dict.fromkeys(note for site in sites for note in site.agent.readiness().notes)
    for note in notes:
        screen.print_line((f"  {note}", "dim"))
    for line in _usage_lines(sites[0].url):
        screen.print_line(line)


def _usage_lines(url: str) -> Sequence[str]:
    body = '{"messages": [{"role": "user", "content": "Hello!"}]}'
    return (
        "",
        f"  ask:    diptych chat {url}",
        f"  or:     curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f"  watch:  diptych events {url}",
        "  end:    Ctrl-C",
    )
