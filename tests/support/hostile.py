"""Servers that mean harm, on loopback: MCP servers that list anything, and peers of raw bytes."""

import functools
import json
import resource
import socket
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types
import uvicorn
from mcp.server.lowlevel import Server

App = Callable[..., Any]

_NEW_CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
    *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
)


@asynccontextmanager
async def serving(
    app: App, *, port: int = 0, certificate: Path | None = None
) -> AsyncIterator[str]:
    """Serve an ASGI app in this loop, by TLS with a certificate; gives its base URL, with http.

    Its connections are cut at the end, as by a crash.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app, log_level="critical", ssl_certfile=certificate, ssl_keyfile=certificate
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup([bound])
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        for task in list(server.server_state.tasks):
            task.cancel()
        await server.lifespan.shutdown()


def self_signed(folder: Path) -> Path:
    """Write a certificate of localhost that no authority signed, and its key."""
    file = folder / "self-signed.pem"
    subprocess.run(
        [*_NEW_CERTIFICATE, "-keyout", file, "-out", folder / "certificate.pem"],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + (folder / "certificate.pem").read_text())
    return file


def mcp_app(tools: Sequence[mcp_types.Tool], answer: mcp_types.CallToolResult | None = None) -> App:
    """Give an MCP server that lists any tools, and answers every call alike."""

    async def listing(_: object, __: object) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=list(tools))

    async def answering(_: object, params: Any) -> mcp_types.CallToolResult:
        text = mcp_types.TextContent(type="text", text=f"hostile {params.name}")
        return answer or mcp_types.CallToolResult(content=[text])

    server: Server[Any] = Server("hostile", on_list_tools=listing, on_call_tool=answering)
    return server.streamable_http_app()


def listed(name: str, description: str = "", schema: Any = None) -> mcp_types.Tool:
    """Give a tool as a server lists it."""
    return mcp_types.Tool(
        name=name, description=description, input_schema=schema or {"type": "object"}
    )


def answering_calls(behind: App, body: Iterable[bytes], **headers: str) -> App:
    """Give a server that answers each tool call with these bytes, and all else as it should."""
    raw_headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-method") != b"tools/call":
            await behind(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers})
        for chunk in body:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


@functools.cache
def gzip_bomb(mebibytes: int) -> bytes:
    """Give so many MiB of zeros in gzip's form: a thousandth of that."""
    packer = zlib.compressobj(1, wbits=31)
    zeros = bytes(2**20)
    return b"".join(packer.compress(zeros) for _ in range(mebibytes)) + packer.flush()


def peak_memory() -> int:
    """Give the most memory that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


CHUNK = 2**16


def reply(result: str) -> bytes:
    """Give a JSON-RPC response with this result, written as JSON."""
    return b'{"jsonrpc": "2.0", "id": 1, "result": ' + result.encode() + b"}"


def endless(chunk: bytes) -> Iterator[bytes]:
    """Give the same chunk, for long."""
    for _ in range(4_000):  # 250 MiB: what is read of it is what counts
        yield chunk


def in_pieces(body: bytes) -> list[bytes]:
    """Cut a body into chunks."""
    return [body[n : n + CHUNK] for n in range(0, len(body), CHUNK)]


SMALL_OBJECTS = '{"content": [], "structuredContent": {"x": [' + "{}," * 1_300_000 + "{}]}}"


_CARD = {
    "name": "p",
    "description": "d",
    "version": "1",
    "capabilities": {"streaming": True},
    "skills": [],
}


def agent_app(body: Callable[[], Iterable[bytes]], headers: Mapping[str, str]) -> App:
    """Give an agent over A2A that answers every message with these bytes."""
    raw_headers = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].endswith(".json"):
            host = dict(scope["headers"])[b"host"].decode()
            interface = {"url": f"http://{host}/", "protocolBinding": "JSONRPC"}
            card = {**_CARD, "supportedInterfaces": [{**interface, "protocolVersion": "1.0"}]}
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": json.dumps(card).encode()})
            return
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers})
        for chunk in body():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app
