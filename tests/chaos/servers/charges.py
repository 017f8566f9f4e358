"""An MCP server whose tool must not run twice: `charges.py FILE` says its port on stdout.

Each start of a tool is a line of JSON in FILE, in the form of `support.history`, written before
the tool does anything; `charge` is not idempotent, `look` is read-only.
"""

import asyncio
import json
import socket
import sys
import time
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

SECONDS = 0.5  # that each call takes
path = Path(sys.argv[1])
server = MCPServer("charges", log_level="CRITICAL")


def note(key: str, *, repeatable: bool) -> None:
    event = {"t": time.monotonic(), "actor": "charges", "kind": "tool_started"}
    with path.open("a") as file:
        file.write(json.dumps({**event, "key": key, "repeatable": repeatable}) + "\n")


@server.tool()
async def charge(key: str) -> str:
    """Charge for an order."""
    note(f"charge {key}", repeatable=False)
    await asyncio.sleep(SECONDS)
    return f"charged {key}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(key: str) -> str:
    """Look at an order."""
    note(f"look {key}", repeatable=True)
    await asyncio.sleep(SECONDS)
    return f"saw {key}"


bound = socket.socket()
bound.bind(("127.0.0.1", 0))
sys.stdout.write(f"{bound.getsockname()[1]}\n")
sys.stdout.flush()
app = server.streamable_http_app(stateless_http=True)
asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="critical")).serve([bound]))
