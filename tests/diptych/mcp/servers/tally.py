"""An MCP server in a process of its own, so that tests can kill it.

    tally.py stdio FILE
    tally.py newer|older|sse FILE PORT  over HTTP, in the newer or only in the older protocol, or
                                        over the older transport

Each call of `add_line` and `wait` first adds a line to FILE, so a test can count what was done.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

era, path = sys.argv[1], Path(sys.argv[2])
server = MCPServer("tally")


@server.tool()
def add_line(text: str) -> str:
    """Write a line."""
    with path.open("a") as file:
        file.write(text + "\n")
    return f"wrote {text}"


@server.tool()
async def wait(seconds: float) -> str:
    """Write a line, then wait."""
    add_line("waiting")
    await asyncio.sleep(seconds)
    add_line("waited")
    return "done"


class Answer(BaseModel):
    answer: str


async def colour() -> Elicit[Answer]:
    return Elicit("Which colour?", Answer)


@server.tool()
async def ask(answer: Annotated[Answer, Resolve(colour)]) -> str:
    """Ask a question."""
    return f"so {answer.answer}"


@server.tool()
async def hang() -> str:
    """Ignore being told to end, and never answer again."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGSTOP)
    return "never"


@server.tool()
def die() -> str:
    """End in the middle of a call."""
    add_line("dying")
    os._exit(3)


class Older:
    """Know the older, session-based protocol only."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-protocol-version") == b"2026-07-28":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"unknown version"})
            return
        await self.app(scope, receive, send)


sys.stderr.write("noise\n")
if era == "stdio":
    server.run("stdio")
else:
    app = server.sse_app(sse_path="/mcp") if era == "sse" else server.streamable_http_app()
    served = Older(app) if era == "older" else app
    uvicorn.run(served, host="127.0.0.1", port=int(sys.argv[3]), log_level="critical")
