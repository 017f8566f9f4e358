"""The HTTP transport of MCP 2024-11-05, HTTP+SSE: one event stream, and a POST for each message.

With the SDK's `sse_client`, one failed POST leaves all later calls without an answer, and the log
gets the session's URL.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
import httpx2
import mcp_types
from anyio.abc import AsyncResource, TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import CONNECTION_CLOSED

from diptych.mcp.connection import CallNotSent
from diptych.mcp.stdio import Incoming, forward
from diptych.mcp.transport import ANSWERED_BY_STREAM, is_event_stream, origin
from diptych.net.received import MAX_ANSWER_BYTES, TooMuchReceived

STREAM_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)  # on this side


@asynccontextmanager
async def sse_transport(
    url: str, client: httpx2.AsyncClient, on_end: Callable[[str], None], otherwise: str
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Incoming], "_Posts"]]:
    """Open the event stream at `url`. `on_end` is called with a reason when the server ends it.

    Raises `CallNotSent`, with the reason `otherwise` if there is no event stream at this URL.
    """
    headers = {"accept": "text/event-stream", "cache-control": "no-store"}
    response = await client.send(client.build_request("GET", url, headers=headers), stream=True)
    try:
        if not is_event_stream(response):
            raise CallNotSent(otherwise)
        events = aiter(httpx2.EventSource(response, max_event_size=MAX_ANSWER_BYTES))
        endpoint = await _endpoint(httpx2.URL(url), events)
        inbox, incoming = anyio.create_memory_object_stream[Incoming](0)
        async with inbox, incoming, anyio.create_task_group() as tasks:
            tasks.start_soon(_receive, events, inbox, on_end)
            yield incoming, _Posts(client, endpoint, inbox, tasks)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


async def _endpoint(url: httpx2.URL, events: AsyncIterator[httpx2.ServerSentEvent]) -> httpx2.URL:
    """Return the URL for messages, which the first event names."""
    try:
        event = await anext(events)
    except (StopAsyncIteration, httpx2.SSEError, httpx2.TransportError) as error:
        raise CallNotSent("its event stream ended before it named an endpoint") from error
    endpoint = url.join(event.data)
    if event.event != "endpoint" or origin(endpoint) != origin(url):
        raise CallNotSent("its event stream names no endpoint on the same origin")
    return endpoint


async def _receive(
    events: AsyncIterator[httpx2.ServerSentEvent],
    inbox: MemoryObjectSendStream[Incoming],
    on_end: Callable[[str], None],
) -> None:
    reason = "its event stream ended"
    async with inbox:
        try:
            async for event in events:
                if event.event == "message" and event.data:
                    await forward(event.data.encode(), inbox)
        except TooMuchReceived as error:
            reason = error.reason
        except httpx2.SSEError:
            reason = f"it sent an event of more than {MAX_ANSWER_BYTES} bytes"
        except httpx2.TransportError:
            pass
        except STREAM_CLOSED:
            return
        on_end(reason)


@dataclass
class _Posts(AsyncResource):
    """A `WriteStream` that posts each message, in its sender's context."""

    client: httpx2.AsyncClient
    endpoint: httpx2.URL
    inbox: MemoryObjectSendStream[Incoming]
    tasks: TaskGroup

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, mcp_types.JSONRPCRequest):
            self.tasks.start_soon(self._request, item.message)
        else:
            await self._post(item.message)

    async def _request(self, request: mcp_types.JSONRPCRequest) -> None:
        response = await self._post(request)
        if not response.is_success:
            error = mcp_types.ErrorData(
                code=CONNECTION_CLOSED, message=f"HTTP {response.status_code}"
            )
            answer = mcp_types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
            with suppress(*STREAM_CLOSED):
                await self.inbox.send(SessionMessage(answer))

    async def _post(self, message: mcp_types.JSONRPCMessage) -> httpx2.Response:
        body = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        extensions = {ANSWERED_BY_STREAM: True}
        return await self.client.post(self.endpoint, json=body, extensions=extensions)

    async def aclose(self) -> None:
        """Do nothing: the transport ends with its event stream."""
