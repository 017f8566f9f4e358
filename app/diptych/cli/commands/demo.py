"""`diptych demo`: two agents and a tool server, really served, asked one question.

The model is a script, so no key is needed; all else is what runs in a cluster. It ends by itself
and leaves nothing running.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from diptych.cli.output.screen import Screen

HOST = "127.0.0.1"
QUESTION = "How much longer does sunlight travel to Jupiter than to Mars?"
MANIFEST = Path(__file__).parents[2] / "demo" / "agents.yaml"


def demo() -> None:
    """See agents work: no key is needed, and nothing is left running.

    A coordinator asks a researcher and a calculator, all of them real servers on this machine.
    """
    from diptych.cli.client.target import set_up_quiet_logging
    from diptych.cli.output.screen import Screen
    from diptych.cli.signals import run_to_exit_code

    screen = Screen()
    screen.line(("Two agents and a tool server start on this machine …", "dim"))
    set_up_quiet_logging()
    raise typer.Exit(run_to_exit_code(_shown(screen)))


def demo_tools() -> None:
    """Serve the tools of the demo and the examples over stdio."""
    from diptych.demo.tools import tool_server

    tool_server().run("stdio")


async def _shown(screen: "Screen") -> int:
    from diptych.cli.client.local import local_agents
    from diptych.cli.client.remote import agent_at
    from diptych.cli.follow import EXIT_CODES, ask
    from diptych.cli.output.timeline import Timeline
    from diptych.config.loader import LaptopOptions, load_agents

    async with _almanac() as almanac:
        loaded = load_agents([MANIFEST], LaptopOptions(services={"almanac": almanac}))
        async with local_agents(loaded) as agents:
            places = [("almanac", almanac), *((agent.name, agent.url) for agent in agents)]
            for name, url in places:
                screen.line(("  ● ", "green"), (f"{name:<13}", "bold"), (url, "dim"))
            screen.line()
            async with agent_at(agents[0].url) as coordinator:
                ended = await ask(coordinator, QUESTION, None, Timeline(screen, question=True))
            await _show_records(screen, dict(places[1:]))
    _show_what_next(screen)
    return EXIT_CODES[ended.status]


@contextlib.asynccontextmanager
async def _almanac() -> AsyncIterator[str]:
    """Serve the demo's tools at a URL while the block lasts."""
    import uvicorn

    from diptych.demo.tools import tool_server

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # Ctrl-C is the demo's

    app = tool_server().streamable_http_app()
    server = Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    with socket.create_server((HOST, 0)) as bound:
        serving = asyncio.create_task(server.serve([bound]))
        try:
            yield f"http://{HOST}:{bound.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await serving


async def _show_records(screen: "Screen", agents: Mapping[str, str]) -> None:
    """Show what each agent has on record, as its memory endpoint gives it."""
    from diptych.cli.client.remote import agent_at
    from diptych.cli.output.event_table import event_rows

    for name, url in agents.items():
        screen.line()
        screen.line((f"{name} has on record", "bold"), (f"  GET {url}/memory/events", "dim"))
        async with agent_at(url) as agent:
            rows = list(event_rows(await agent.memory(), screen.width))
        for row in rows[1:]:
            screen.line(*row)


def _show_what_next(screen: "Screen") -> None:
    screen.line()
    screen.line("Nothing is left running. These agents are a file, and yours can be, too:")
    screen.line(("  ", ""), (str(MANIFEST), "bold"))
    screen.line("Serve it, talk to it, apply it to a cluster:")
    screen.line(("  diptych serve agent.yaml    diptych chat agent.yaml", "bold"))
