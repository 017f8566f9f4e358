"""A2A 1.0 over JSON-RPC: other agents (and people) give this agent tasks.

A task is a run and a context is a session, so there is no second store of tasks: each method is
a few lines of translation over `RunService`, and `http.a2a_task` shows a run's records as a task.

A stream whose process is leaving, or whose store has lost what was told, ends before its task:
the client subscribes again, and gets a snapshot first.

Not here: A2A 0.3, the REST binding, push notifications. Each is refused with the error that the
specification has for it.
"""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import NoReturn

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import validate_history_length
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from diptych.errors import (
    Overloaded,
    RequestError,
    RunEnded,
    RunLost,
    RunNotFound,
    StoreError,
    StoreFull,
)
from diptych.http.a2a.card import RPC_PATH, card_route
from diptych.http.a2a.card_facts import CardFacts
from diptych.http.a2a.listing import list_tasks
from diptych.http.a2a.message import read_ask, read_follow_up
from diptych.http.a2a.task import Telling, Update, snapshot, submitted
from diptych.loop.codec import TERMINAL, Record
from diptych.net import a2a_extension
from diptych.ports import Notice
from diptych.ports.entries import RunEntry
from diptych.runtime.answers import collect
from diptych.runtime.service import RunService

__all__ = ["CardFacts", "a2a_routes"]

SHUTDOWN_GRACE = 4.0  # seconds; the server's own is 5
PARSE_ERROR = -32700
_SAME_ID = "message.messageId came with other parts before; give each new message a new id"
_WHEN_OVER = "the task has ended; to go on, send the message with its contextId and no taskId"
_WHEN_FULL = {"retryAfterSeconds": "10"}

_log = logging.getLogger(__name__)


def a2a_routes(
    runs: RunService, facts: CardFacts, *, shutdown_grace_period: float = SHUTDOWN_GRACE
) -> list[Route]:
    """Give the routes of the agent card and of JSON-RPC, at `/a2a` and `/a2a/`.

    `shutdown_grace_period` is how many seconds open streams get to end when the server stops; it
    must be less than the server's own graceful timeout.
    """
    (rpc,) = create_jsonrpc_routes(
        RunsAsTasks(runs), RPC_PATH, shutdown_grace_period=shutdown_grace_period
    )
    endpoint = _guarded(rpc.endpoint)
    return [
        card_route(facts),
        *(Route(path, endpoint, methods=["POST"]) for path in (RPC_PATH, f"{RPC_PATH}/")),
    ]


class RunsAsTasks(RequestHandler):
    """The methods of A2A (specification, section 3.1) over `RunService`."""

    def __init__(self, runs: RunService) -> None:
        self._runs = runs

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        with _InWordsOfA2A():
            entry = await self._taken(params, context)
            length, asked = _history_length(params.configuration), params.message
            if not params.configuration.return_immediately:
                records: Sequence[Record] = await self._heard_out(entry.run_id)
            elif entry.status == "queued" and not asked.task_id:
                return submitted(entry, asked, length)
            else:  # it was sent before, or is for a task that was there
                records = await self._runs.records(entry.run_id)
            return snapshot(entry, records, length, None if asked.task_id else asked)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with _InWordsOfA2A():
            entry = await self._taken(params, context)
            length = _history_length(params.configuration)
            if params.message.task_id:
                first = self._picked_up(entry, length)
            else:
                first = self._updates(entry, Telling(entry))
                yield submitted(entry, params.message, length)
            async for update in first:
                yield update

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        del context
        with _InWordsOfA2A():
            validate_proto_required_fields(params)
            entry = await self._runs.entry(params.id)
            if entry.status in TERMINAL:
                raise UnsupportedOperationError("the task has ended; read it with GetTask")
            async for event in self._picked_up(entry):
                yield event

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        del context
        with _InWordsOfA2A():
            validate_proto_required_fields(params)
            validate_history_length(params)
            entry = await self._runs.entry(params.id)
            return snapshot(entry, await self._runs.records(params.id), _history_length(params))

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        del context
        with _InWordsOfA2A():
            validate_proto_required_fields(params)
            entry = await self._runs.entry(params.id)
            if entry.status not in TERMINAL:
                entry = await self._runs.cancel(params.id)
                if entry.status not in TERMINAL - {"aborted"}:  # else its end came first
                    return snapshot(entry, await self._runs.records(params.id))
            raise TaskNotCancelableError(f"the task has ended already: {entry.status}")

    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        del context
        with _InWordsOfA2A():
            return await list_tasks(self._runs, params)

    async def on_get_extended_agent_card(
        self, params: object, context: ServerCallContext
    ) -> NoReturn:
        del params, context
        raise UnsupportedOperationError("this agent has no extended card; its card says it all")

    async def _no_push(self, params: object, context: ServerCallContext) -> NoReturn:
        del params, context
        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _no_push
    on_get_task_push_notification_config = _no_push
    on_list_task_push_notification_configs = _no_push
    on_delete_task_push_notification_config = _no_push

    async def _taken(self, params: SendMessageRequest, context: ServerCallContext) -> RunEntry:
        """Begin a task, or have the message join the one that it names (specification, 3.4.3)."""
        ask = read_ask(params, context.state.get("headers", {}))
        validate_history_length(params.configuration)
        message = params.message
        if not message.task_id:
            return await self._runs.start(ask)
        entry = await self._runs.entry(message.task_id)
        if message.context_id not in ("", entry.session_id):
            raise InvalidParamsError("message.contextId is not the context of message.taskId")
        return await self._runs.steer(entry.run_id, read_follow_up(message, ask))

    async def _heard_out(self, run_id: str) -> list[Record]:
        """Wait for a task's end; what is on record by then, should this process leave earlier."""
        records: list[Record] = []
        async for batch in self._runs.subscribe(run_id):
            for item in batch:
                collect(records, item)
        return records

    async def _picked_up(self, entry: RunEntry, length: int | None = None) -> AsyncIterator[Event]:
        """Tell a task that is there: as it is, then what happens."""
        records = await self._runs.records(entry.run_id)
        telling = Telling(entry)
        telling.updates(records)  # what the snapshot says already
        seq = records[-1].seq
        yield snapshot(entry, records, length)
        del records  # nothing is kept for a slow reader but what it is being told
        async for update in self._updates(entry, telling, seq):
            yield update

    async def _updates(
        self, entry: RunEntry, telling: Telling, after: int = 0
    ) -> AsyncIterator[Update]:
        async for batch in self._runs.subscribe(entry.run_id, after):
            if any(isinstance(item, Notice) and item.type == "reset" for item in batch):
                return
            for update in telling.updates(item for item in batch if isinstance(item, Record)):
                yield update


class _InWordsOfA2A:
    """Turns what leaves its block into errors of A2A.

    The SDK sends the text of any other exception to the caller; of ours, nobody learns more than
    that there was one. Cancellation passes through.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        match error:
            case None | A2AError():
                return
            case RunNotFound() | RunLost():
                raise TaskNotFoundError(error.message) from error
            case Overloaded():
                wait = {"retryAfterSeconds": str(error.retry_after)}
                raise InternalError(str(error), wait) from error
            case RunEnded():
                raise UnsupportedOperationError(_WHEN_OVER) from error
            case RequestError(code="idempotency_mismatch"):
                raise InvalidParamsError(_SAME_ID) from error
            case RequestError():
                raise InvalidParamsError(error.message) from error
            case StoreFull():
                raise InternalError("the store of tasks has no room now", _WHEN_FULL) from error
            case StoreError():
                raise InternalError("the record of tasks cannot be reached now") from error
            case Exception():
                _log.error("an A2A request failed unexpectedly", exc_info=error)
                raise InternalError("internal error") from error


def _history_length(asked: GetTaskRequest | SendMessageConfiguration) -> int | None:
    return asked.history_length if asked.HasField("history_length") else None


def _guarded(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Answer what the SDK would answer with HTTP 500 or an internal error: text that is no JSON.

    Also names the extension in the reply when the caller activated it (specification, 4.6).
    """

    async def answer(request: Request) -> Response:
        if problem := await _body_problem(request):
            error = {"code": PARSE_ERROR, "message": problem}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})
        response = await endpoint(request)
        asked_for = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        if a2a_extension.URI in asked_for:
            response.headers[HTTP_EXTENSION_HEADER] = a2a_extension.URI
        return response

    return answer


async def _body_problem(request: Request) -> str | None:
    try:
        body = await request.json()
        if b"\\u" in await request.body():  # half a surrogate pair cannot be echoed as UTF-8
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        return "the body is nested too deeply"
    except ValueError:
        return "the body is not JSON in UTF-8"
    return None
