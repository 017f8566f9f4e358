"""An MCP server over HTTP, run inside a pod: the demo's tools, `whoami`, and `pay`, which asks."""

import hashlib
from typing import Annotated

import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel

from diptych.demo.tools import tool_server

server = tool_server()


@server.tool()
def whoami(context: Context) -> str:
    """Say which key the caller has shown, by its digest: the key itself would be redacted."""
    key = context.request_context.request.headers.get("x-key", "none")
    return f"key={hashlib.sha256(key.encode()).hexdigest()}"


class Payer(BaseModel):
    name: str


async def who_pays() -> Elicit[Payer]:
    return Elicit("Who pays?", Payer)


@server.tool()
def pay(coins: int, payer: Annotated[Payer, Resolve(who_pays)]) -> str:
    """Pay coins, once a person has said who pays."""
    return f"{payer.name} paid {coins} coins"


# The Host header is the Service's name, whatever that is.
app = server.streamable_http_app(
    host="0.0.0.0",
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)
uvicorn.run(app, host="0.0.0.0", port=8000, log_level="warning")
