"""An authorization server and an MCP server that takes its tokens, at one address over TLS.

It runs in a pod, beside tests/support/authorization_server.py. Its argument is its URL.
"""

import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from support.authorization_server import RESOURCE_METADATA, AuthorizationServer, Guarded

pages = MCPServer("pages")
login = AuthorizationServer(sys.argv[1], clients={"helper": "the-secret"})
any_host = TransportSecuritySettings(enable_dns_rebinding_protection=False)
guarded = Guarded(pages.streamable_http_app(transport_security=any_host), login, login.url)
login_app = login.app()


@pages.tool()
def who() -> str:
    """Say for whom the last call was."""
    return f"for {guarded.calls[-1][1]}"


async def app(scope, receive, send):
    is_tools = scope["type"] == "lifespan" or scope["path"].startswith(("/mcp", RESOURCE_METADATA))
    await (guarded if is_tools else login_app)(scope, receive, send)


uvicorn.run(app, host="0.0.0.0", port=8000, ssl_certfile="/tls/server.pem", log_level="warning")
