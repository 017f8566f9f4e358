"""The tools of calc.py as a stdio server, with some that only a server has."""

import os
import sys
from pathlib import Path

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

sys.path.append(str(Path(__file__).parent))
import calc

server = MCPServer("stdio-calc", version="1.2")
server.add_tool(calc.add, annotations=ToolAnnotations(read_only_hint=True))
server.add_tool(calc.wait)


@server.tool()
def fail() -> None:
    raise ToolError("ValueError: no such planet")


@server.tool()
async def count(context: Context) -> str:
    """Report progress."""
    await context.report_progress(1, 2, "half")
    await context.report_progress(2, 2)
    return "counted"


@server.tool()
def refuse() -> None:
    raise MCPError(-32042, "not today")


@server.tool()
def die() -> None:
    os._exit(3)


calc._log(f"started {os.getpid()}")
server.run("stdio")
