"""An MCP server over HTTP, run inside a pod: the demo's tools, and `whoami`."""

import hashlib

import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.transport_security import TransportSecuritySettings

from diptych.demo.tools import tool_server

server = tool_server()


@server.tool()
def whoami(context: Context) -> str:
    """Say which key the caller has shown, by its digest: the key itself would be redacted."""
    key = context.request_context.request.headers.get("x-key", "none")
    return f"key={hashlib.sha256(key.encode()).hexdigest()}"


# The Host header is the Service's name, whatever that is.
app = server.streamable_http_app(
    host="0.0.0.0",
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)
uvicorn.run(app, host="0.0.0.0", port=8000, log_level="warning")
