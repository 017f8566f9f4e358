"""`diptych demo`: serves two agents and a tool server, and asks them one question.

A script stands in for the model, so no key is needed; everything else runs as in a cluster. The
demo ends by itself and leaves nothing running.
"""

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from diptych.cli.commands.options import set_up_quiet_logging

HOST = "127.0.0.1"
QUESTION = "How much longer does sunlight travel to Jupiter than to Mars?"
MANIFEST = Path(__file__).parents[2] / "demo" / "agents.yaml"


async def demo() -> int:
    """See agents work: no key is needed, and nothing is left running.

    A coordinator asks a researcher and a calculator, all of them real servers on this machine.
    """
    from diptych.cli.output.screen import Screen

    screen = Screen()
    screen.print_line(("Two agents and a tool server start on this machine …", "dim"))
    set_up_quiet_logging()

    from diptych.cli.client.local import local_agents
    from diptych.cli.client.remote import agent_at
    from diptych.cli.exits import EXIT_CODE_BY_STATUS
    from diptych.cli.follow import start_and_follow
    from diptych.cli.output.events import event_rows
    from diptych.cli.output.timeline import Timeline
    from diptych.manifest.loader import LocalOptions, load_agents

    async with _almanac() as almanac:
        loaded = load_agents([MANIFEST], LocalOptions(services={"almanac": almanac}))
        async with local_agents(loaded) as agents:
            servers = [("almanac", almanac), *((agent.name, agent.url) for agent in agents)]
            for name, url in servers:
                screen.print_line(("  ● ", "green"), (f"{name:<13}", "bold"), (url, "dim"))
            screen.print_line()
            async with agent_at(agents[0].url) as coordinator:
                timeline = Timeline(screen, question=True)
                ended = await start_and_follow(coordinator, QUESTION, None, timeline)
            for name, url in servers[1:]:
                screen.print_line()
                screen.print_line(
                    (f"The events of {name}", "bold"), (f"  GET {url}/memory/events", "dim")
                )
                async with agent_at(url) as agent:
                    rows = list(event_rows(await agent.recorded_events(), screen.width))
                for row in rows[1:]:
                    screen.print_line(*row)
    screen.print_line()
    screen.print_line("Nothing is left running. These agents are a file:")
    screen.print_line((f"  {MANIFEST}", "bold"))
    screen.print_line("Write one of your own, and talk to it:")
    screen.print_line(("  diptych init    diptych chat agent.yaml", "bold"))
    return EXIT_CODE_BY_STATUS[ended.status]


def demo_tools() -> None:
    """Serve the tools of the demo and the examples over stdio."""
    from diptych.demo.tools import tool_server

    tool_server().run("stdio")


@contextlib.asynccontextmanager
async def _almanac() -> AsyncIterator[str]:
    """Serve the demo's tools while a block lasts; yields their URL."""
    import uvicorn

    from diptych.demo.tools import tool_server
    from diptych.serve.http_server import run_server

    app = tool_server().streamable_http_app()
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    with socket.create_server((HOST, 0)) as bound:
        async with run_server(config, bound):
            yield f"http://{HOST}:{bound.getsockname()[1]}/mcp"
