"""An MCP server over HTTP, run inside a pod: the demo's tools, and `whoami`."""

import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.transport_security import TransportSecuritySettings

from diptych.demo.tools import tool_server

server = tool_server()


@server.tool()
def whoami(context: Context) -> str:
    """Say which key the caller has shown."""
    headers = context.request_context.request.headers
    return f"key={headers.get('x-key', 'none')}"


# The Host header is the Service's name, whatever that is.
app = server.streamable_http_app(
    host="0.0.0.0",
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)
uvicorn.run(app, host="0.0.0.0", port=8000, log_level="warning")
