"""`diptych run` against an agent at a URL shows how many of its steps a run has taken."""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE

from diptych.manifest.settings import AgentConfig, ToolServerConfig
from diptych.serve.process import ListenAddress, Sockets, serve_agents


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = json.dumps({"tool": "add", "arguments": {"a": 2, "b": 2}})
SCRIPT = json.dumps([CALL, CALL, "{}", "It is 4."])


async def test_the_line_of_the_first_call_has_the_limit_of_steps():
    config = AgentConfig(
        "helper", mock_responses=SCRIPT, tools=(ToolServerConfig("numbers", functions=(add,)),)
    )
    sockets = Sockets(ListenAddress(port=0), 1)
    async with serve_agents([config], sockets) as sites, asyncio.timeout(60):
        await sites[0].wait_for_first_connect()
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "diptych", "run", sockets.urls[0], "What is 2 + 2?"),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        answer, progress = await run.communicate()
    calls = [line for line in progress.decode().splitlines() if "●" in line]
    assert calls == ["● step 1/5  add(a=2, b=2)", "● step 2/5  add(a=2, b=2)"]
    assert answer == b"It is 4.\n"
