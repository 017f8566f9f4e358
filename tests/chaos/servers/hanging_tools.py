"""An MCP server of a process of its own, whose tools hang; it writes down what becomes of them.

    python hanging_tools.py FILE          over stdio
    python hanging_tools.py FILE PORT     over HTTP

Each line of FILE is `started`, `cancelled` (the call was, by its caller) or `closed` (the process
was told to end, or lost its caller), and the time of the machine's clock.
"""

import asyncio
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

FILE = Path(sys.argv[1])
server = MCPServer("hanging", log_level="CRITICAL")


def note(what: str) -> None:
    with FILE.open("a") as file:
        file.write(f"{what} {time.monotonic()}\n")


@server.tool()
async def hang() -> str:
    """Hang for ever."""
    note("started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return ""


if len(sys.argv) > 2:
    import uvicorn

    uvicorn.run(server.streamable_http_app(), port=int(sys.argv[2]), log_level="critical")
else:
    server.run("stdio")
