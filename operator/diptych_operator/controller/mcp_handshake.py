"""The handshake with an MCP server by the SDK, within bounds: nobody vouches for the server."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from diptych_operator.status.mcp_server import MAX_TOOLS, Handshake

_SECONDS = 10.0
_MAX_BYTES = 1024 * 1024  # of one response
_MAX_PAGES = 20
_MAX_TEXT = 300


async def handshake(url: str, headers: Mapping[str, str]) -> Handshake:
    """Ask a server for its name and tools.

    It has a task of its own: the SDK cancels the one that loses a connection.
    """
    if refused := await _refusal(url):
        return Handshake(reason=f"{url}: {refused}")
    task = asyncio.create_task(_ask(url, headers))
    done, _ = await asyncio.wait([task], timeout=_SECONDS)
    if not done:
        task.cancel()
        await asyncio.wait([task])
        return Handshake(reason=f"{url} gave no answer within {_SECONDS:g} s")
    if task.cancelled():
        return Handshake(reason=f"{url}: the connection was lost")
    if error := task.exception():
        return Handshake(reason=f"{url} does not answer as an MCP server: {_reason(error)}")
    return task.result()


def digest(tool: mcp_types.Tool) -> str:
    """Return a tool's digest as pins have it; `diptych.mcp.tool_rules` has the same."""
    content = {
        "name": tool.name,
        "description": tool.description or tool.title or "",
        "inputSchema": tool.input_schema,
    }
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


async def _ask(url: str, headers: Mapping[str, str]) -> Handshake:
    http = httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=_SECONDS,
        transport=_Bounded(httpx2.AsyncHTTPTransport()),
    )
    async with http, Client(streamable_http_client(url, http_client=http), cache=None) as client:
        tools: dict[str, str] = {}
        cursor = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools[: MAX_TOOLS - len(tools)]:
                tools.setdefault(tool.name, digest(tool))
            cursor = page.next_cursor
            if cursor is None or len(tools) == MAX_TOOLS:
                break
        info = client.server_info
        about = {"name": info.name, "version": info.version} if info else {}
        return Handshake(tools, {**about, "protocolVersion": client.protocol_version})


async def _refusal(url: str) -> str | None:
    """Return why the operator does not ask a URL: it must not reach its own node or itself."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, parts.port or 80)
    except OSError:
        return "its host has no address"
    for *_, address in found:
        ip = ip_address(str(address[0]).partition("%")[0])
        if ip.is_loopback or ip.is_link_local:
            return "its address is one of the operator's own machine"
    return None


def _reason(error: BaseException) -> str:
    """Return why a handshake failed, without what a server has written, but for its error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return " ".join(error.message.split())[:_MAX_TEXT]
    return type(error).__name__


class _Bounded(httpx2.AsyncBaseTransport):
    """Ends responses that are too large."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - of an async transport
        response.stream = _BoundedBody(stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MAX_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError("too large")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
