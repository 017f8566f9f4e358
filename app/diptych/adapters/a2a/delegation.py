"""One delegation on its way: sent, listened to, picked up again when the line breaks, called off.

Not here: which agent, and whether it may be asked (the package itself); what was said (`heard`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
from a2a.client import Client, ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
)
from a2a.utils.errors import A2AError, InternalError

from diptych.adapters.a2a.http_client import GARBAGE
from diptych.adapters.a2a.task_progress import TaskProgress
from diptych.errors import DelegationError
from diptych.loop.messages import CallOutput
from diptych.ports import Progress

LINGER = 1.0  # seconds that a stream has to end by itself after its last event: a clean connection
FIRST_POLL, LONGEST_POLL = 0.05, 1.0  # seconds between two looks at a task that does not stream
CANCEL_TIMEOUT = 5.0  # seconds
REASON_LIMIT = 500  # characters

NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)
TURNED_AWAY = frozenset({429, 502, 503})

_log = logging.getLogger(__name__)


class DelegationTask:
    """A task that another agent was given, until it is over."""

    def __init__(
        self, name: str, client: Client, context: ClientCallContext, progress: Progress
    ) -> None:
        self._name = name
        self._client = client
        self._context = context
        self._progress = progress
        self._heard = TaskProgress()

    async def run(self, request: SendMessageRequest) -> CallOutput:
        """Send the request and wait for the task's end. Raises `DelegationError`."""
        try:
            await self._listen(self._client.send_message(request, context=self._context))
        except (A2AError, *GARBAGE) as error:
            if not (self._heard.task_id and _is_lost(error)):
                raise self._explained(error) from error
        if not self._heard.is_over:
            await self._pick_up(is_streamed=not request.configuration.return_immediately)
        return self._heard.answer(self._name)

    async def cancel(self) -> None:
        """Tell the agent to stop, if it has named a task that is not over. Never raises."""
        if not self._heard.task_id or (self._heard.is_over and not self._heard.is_waiting):
            return
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                await self._client.cancel_task(
                    CancelTaskRequest(id=self._heard.task_id), context=self._context
                )
        except (A2AError, TimeoutError, *GARBAGE) as error:
            _log.info("agent %s did not cancel a task: %s", self._name, type(error).__name__)

    async def _listen(self, events: AsyncIterator[StreamResponse]) -> None:
        """Hear a stream to its end, which its server may owe us once the task is over."""
        try:
            async with asyncio.timeout(None) as patience:
                async for event in events:
                    if text := self._heard.take(event):
                        self._progress(text)
                    if self._heard.is_over:
                        patience.reschedule(asyncio.get_running_loop().time() + LINGER)
        except TimeoutError:
            pass

    async def _pick_up(self, *, is_streamed: bool) -> None:
        """Learn the end of a task whose stream broke off, or that never streamed."""
        task_id = self._heard.task_id
        if not task_id:
            raise DelegationError("failed", f"agent {self._name} answered nothing")
        try:
            if is_streamed:
                await self._subscribe(task_id)
            await self._poll(task_id)
        except (A2AError, *GARBAGE) as error:
            raise DelegationError(
                "unknown",
                f"the connection to agent {self._name} was lost, and so is what became of the task",
            ) from error

    async def _subscribe(self, task_id: str) -> None:
        request = SubscribeToTaskRequest(id=task_id)
        try:
            await self._listen(self._client.subscribe(request, context=self._context))
        except (A2AError, *GARBAGE) as error:  # a task that has ended cannot be subscribed to
            if _is_lost(error) or _was_never_sent(error):
                raise

    async def _poll(self, task_id: str) -> None:
        pause = FIRST_POLL
        while not self._heard.is_over:
            task = await self._client.get_task(GetTaskRequest(id=task_id), context=self._context)
            if text := self._heard.take_task(task):
                self._progress(text)
            if not self._heard.is_over:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LONGEST_POLL)

    def _explained(self, error: Exception) -> DelegationError:
        """Say what a request that got no answer means for the model."""
        name = self._name
        match error:
            case _ if _was_never_sent(error):
                return DelegationError("unavailable", f"agent {name} cannot be reached")
            case _ if _is_lost(error):
                return DelegationError(
                    "unknown", f"agent {name} was sent the task, and the connection was lost"
                )
            case A2AClientError(__cause__=httpx.HTTPStatusError(response=response)):
                return _http_error(name, response.status_code)
            case InternalError(data={"retryAfterSeconds": _}):
                return DelegationError("unavailable", f"agent {name} has too much to do")
            case A2AError() if not isinstance(error, A2AClientError):
                reason = error.message[:REASON_LIMIT]
                return DelegationError("failed", f"agent {name} did not take the task: {reason}")
            case _:
                return DelegationError("failed", f"what agent {name} answered makes no sense")


def _was_never_sent(error: Exception) -> bool:
    return isinstance(error, A2AClientError) and isinstance(error.__cause__, NEVER_SENT)


def _is_lost(error: Exception) -> bool:
    """Say whether the line broke after the request may have gone out."""
    return (
        isinstance(error, A2AClientError)
        and isinstance(error.__cause__, httpx.TransportError)
        and not isinstance(error.__cause__, NEVER_SENT)
    )


def _http_error(name: str, status: int) -> DelegationError:
    if status in TURNED_AWAY:
        return DelegationError("unavailable", f"agent {name} takes no tasks now (HTTP {status})")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return DelegationError("failed", f"agent {name} refuses our credentials (HTTP {status})")
    return DelegationError("failed", f"agent {name} did not take the task (HTTP {status})")
