"""`/mcp`: the agent as an MCP server over streamable HTTP, with one tool, `ask`.

The SDK speaks both eras of the protocol. No request needs another's state, so any replica takes it:
a client of the 2025 era gets a session id that is only a name, under which its requests are found
when it cancels them.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import anyio
import mcp_types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field, ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from diptych.access.caller import Forbidden, current_caller
from diptych.access.grants import Right
from diptych.core import messages
from diptych.core.codec import TERMINAL, Record, is_terminal
from diptych.core.errors import InvalidRequest, Overloaded, RequestError, StoreError
from diptych.core.messages import JSON
from diptych.core.waits import note_waits, open_waits
from diptych.http.agent_profile import MCP_PATH, TEAM, AgentProfile
from diptych.http.bodies import Body
from diptych.http.errors import RunFailed, first_problem
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.run_reader import RunReader
from diptych.http.run_request import origin, sha256
from diptych.net.redaction import SECRETS
from diptych.net.strict_reading import read_strictly
from diptych.ports import Item, Notice
from diptych.ports.entries import RunEntry
from diptych.runs.answers import collect, whole_answer
from diptych.runs.request import RunRequest

TOOL = "ask"
SESSION_HEADER = "mcp-session-id"
RUN_META, SESSION_META = "dev.diptych/runId", "dev.diptych/sessionId"
REQUEST_NOTE = "mcp_request"
"""The note of a run: the digest of the MCP session and request that started it."""
_EXCHANGE = "diptych.mcp_exchange"  # of a scope
_MAX_RECENT = 100  # runs among which the run of a cancelled request is looked for
_MAX_SESSION_ID = 128  # characters
_REFUSALS = (Forbidden, Overloaded, StoreError)  # have an HTTP status
_Context = ServerRequestContext[Any, Any]


class AskArguments(Body):
    """A message to the agent."""

    model_config = ConfigDict(extra="forbid")

    message: str = Field(min_length=1)
    session: str | None = Field(
        None,
        description="A name of your choice: 1 to 128 characters A-Z a-z 0-9 . _ -. Messages with "
        "the same name continue one conversation; without it each message begins a new one.",
    )


INPUT_SCHEMA = AskArguments.model_json_schema()


def mcp_routes(runs: GuardedRuns, profile: AgentProfile) -> list[Route]:
    """Return the route of MCP."""
    return [Route(MCP_PATH, AgentServer(runs, profile), methods=["POST"])]


def _tool(name: str, profile: AgentProfile) -> mcp_types.Tool:
    """Return an agent as a tool, with an output schema if the agent's is an object's."""
    output = profile.output_schema
    schema = {"type": "object"} if output == {} else dict(output or {})
    return mcp_types.Tool(
        name=name,
        title=profile.name,
        description=profile.description or f"Ask the agent {profile.name}.",
        input_schema=INPUT_SCHEMA,
        output_schema=schema if schema.get("type") == "object" else None,
    )


@dataclass
class _Exchange:
    """One HTTP request: its body again for the SDK, and a response held back until its first byte.

    `run_id` is the run to cancel if the client closes the response: that is how it cancels in the
    2026 era. A `refusal` that is set before the first byte replaces the response. `session_id` is
    sent with it.
    """

    body: bytes
    receive_next: Receive
    send_on: Send
    session_id: str = ""
    run_id: str = ""
    refusal: Exception | None = None
    is_closed: bool = False
    _is_read: bool = False
    _start: Message | None = None

    async def receive(self) -> Message:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        message = await self.receive_next()
        self.is_closed |= message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self.refusal:
            return
        if self._start:
            if self.session_id:
                MutableHeaders(scope=self._start)["Mcp-Session-Id"] = self.session_id
            await self.send_on(self._start)
            self._start = None
        await self.send_on(message)


class AgentServer:
    """ASGI application: the MCP server of one agent."""

    def __init__(self, runs: GuardedRuns, profile: AgentProfile) -> None:
        self._runs = runs
        self._agent = profile.name
        self._tool = _tool(TOOL, profile)
        self._server: Server[Any] = Server(
            profile.name,
            version=profile.version,
            description=profile.description or None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=lambda _: INPUT_SCHEMA,
        )
        self._server.middleware.clear()  # its spans; a run has its own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        try:
            message = await read_strictly(body)
        except ValueError as error:
            await _parse_error(f"the body is not valid JSON: {error}")(scope, receive, send)
            return
        if note := _cancelled_request(message, request.headers):
            await self._cancel(note)
            await Response(status_code=202)(scope, receive, send)
            return
        exchange = _Exchange(body, receive, send)
        if isinstance(message, dict) and message.get("method") == "initialize":
            exchange.session_id = secrets.token_hex(16)
        # uvicorn leaves the white space around values that RFC 9110, 5.5 excludes from them
        headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        await self._serve({**scope, "headers": headers, _EXCHANGE: exchange}, exchange)
        if exchange.refusal:
            raise exchange.refusal
        run_id = exchange.run_id
        if exchange.is_closed and run_id and not self._runs.has_subscribers(run_id):
            await self._runs.cancel(run_id, "the client disconnected")

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        """Let the SDK answer, in tasks that end with this request."""
        manager = StreamableHTTPSessionManager(self._server, stateless=True)
        async with manager.run():
            await manager.asgi_app(scope, exchange.receive, exchange.send)

    async def _cancel(self, note: str) -> None:
        """Cancel the caller's unfinished run that a request started, at whatever replica."""
        for entry in await self._runs.entries(limit=_MAX_RECENT):
            if entry.status in TERMINAL:
                continue
            async with aclosing(await self._runs.subscribe(entry.run_id)) as batches:
                first, *_ = await anext(batches)
            notes = first.metadata.get("notes") if isinstance(first, Record) else None
            if isinstance(notes, Mapping) and notes.get(REQUEST_NOTE) == note:
                await self._runs.cancel(entry.run_id, "the client cancelled its request")
                return

    # What the SDK calls

    async def _list_tools(
        self, context: _Context, params: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        del params
        team: Sequence[AgentProfile] | None = _request(context).scope.get(TEAM)
        tools = [self._tool] if current_caller().may(Right.ASK) else []
        if team is not None:
            tools = [_tool(profile.name, profile) for profile in team]
        return mcp_types.ListToolsResult(tools=tools)

    async def _call_tool(
        self, context: _Context, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        if params.name not in (TOOL, self._agent):  # a team's tools are called as their agents
            message = f"there is no tool {params.name[:64]!r}; see tools/list"
            raise MCPError(mcp_types.INVALID_PARAMS, message)
        exchange: _Exchange = _request(context).scope[_EXCHANGE]
        try:
            with anyio.CancelScope(shield=True):  # a run must not begin unknown to this exchange
                entry = await self._runs.start(_run_request(context, params.arguments or {}))
        except _REFUSALS as error:
            exchange.refusal = error
            raise MCPError(mcp_types.INTERNAL_ERROR, "refused") from error
        except RequestError as error:
            return _failed(error.message)
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            exchange.run_id = entry.run_id
        result = await self._result(context, entry)
        exchange.run_id = ""
        result.meta = {RUN_META: entry.run_id, SESSION_META: entry.session_id}
        return result

    async def _result(self, context: _Context, entry: RunEntry) -> mcp_types.CallToolResult:
        """Wait until a run ends or needs a decision."""
        reader = RunReader(self._runs, entry)
        try:
            records = await self._records(context, reader)
            if open_waits(records):
                return _failed(_waiting_text(entry, records))
            if not (records and is_terminal(records[-1])):
                raise reader.handed_over()
            reader.raise_if_failed(records[-1])
        except RunFailed as error:
            return _failed(error.message)
        answer = whole_answer(records) or ""
        result = mcp_types.CallToolResult(content=[_text(answer)])
        result.is_error = records[-1].event_type == "max_steps"
        if self._tool.output_schema and not result.is_error:
            result.structured_content = json.loads(_last_answer(records))
        return result

    async def _records(self, context: _Context, reader: RunReader) -> list[Record]:
        """Read a run and report its progress, until it ends or needs a decision."""
        records: list[Record] = []
        waiting: set[str] = set()
        reported = 0
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                for item in batch:
                    collect(records, item)
                    if isinstance(item, Record):
                        note_waits(waiting, item.event_type, item.metadata)
                    if text := _progress(item):
                        reported += 1
                        await context.session.report_progress(reported, message=text)
                if waiting:
                    break
        return records


# Requests


def _request(context: _Context) -> Request:
    return cast("Request", context.request)


def _run_request(context: _Context, arguments: Mapping[str, Any]) -> RunRequest:
    """Return the run that a call of `ask` starts. Raises `InvalidRequest`."""
    try:
        asked = AskArguments.model_validate(arguments)
    except ValidationError as error:
        raise first_problem(cast("Any", error.errors())) from None
    if not asked.message.strip():
        raise InvalidRequest("message is empty", param="message")
    headers = _request(context).headers
    trace = (context.meta or {}).get("traceparent") or headers.get("traceparent")
    note = _request_note(headers, context.request_id)
    return RunRequest(
        (messages.Message("user", asked.message),),
        session_id=asked.session,
        origin=origin({"traceparent": str(trace)} if trace else {}),
        notes={REQUEST_NOTE: note} if note else {},
    )


def _request_note(headers: Headers, request_id: object) -> str:
    """Name a request of a client that has a session id; "" without one."""
    session_id = headers.get(SESSION_HEADER, "")
    if not 0 < len(session_id) <= _MAX_SESSION_ID:
        return ""
    return sha256(f"{session_id} {json.dumps(request_id)}".encode())


def _cancelled_request(message: JSON, headers: Headers) -> str:
    """Return the note of the request that a message cancels; "" for any other message."""
    match message:
        case {"method": "notifications/cancelled", "params": {"requestId": str() | int() as id_}}:
            return _request_note(headers, id_)
        case _:
            return ""


def _parse_error(problem: str) -> Response:
    error = {"code": mcp_types.PARSE_ERROR, "message": problem}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)


# Results


def _text(text: str) -> mcp_types.TextContent:
    return mcp_types.TextContent(text=text)


def _failed(problem: str) -> mcp_types.CallToolResult:
    return mcp_types.CallToolResult(content=[_text(SECRETS.redact(problem))], is_error=True)


def _last_answer(records: list[Record]) -> str:
    """Return the newest answer, which fits the agent's schema: one of several turns is no JSON."""
    return next(str(r.content) for r in reversed(records) if r.event_type == "agent_response")


def _waiting_text(entry: RunEntry, records: list[Record]) -> str:
    calls = "; ".join(
        f"call {wait.call_id}: {json.dumps(wait.requested.content)}" for wait in open_waits(records)
    )
    path = f"/v1/runs/{entry.run_id}"
    return (
        f"The run {entry.run_id} waits for a person: {calls}. Approvals are decided with "
        f"`diptych approvals` or at {path}/approvals/CALL, questions answered at "
        f"{path}/inputs/CALL. Then the run goes on: read its answer "
        f"at {path}, or ask again with the session {entry.session_id!r}."
    )


def _progress(item: Item) -> str:
    """Return the progress message for an event; "" if it has none."""
    if isinstance(item, Notice):
        return str(item.fields.get("message", "")) if item.type == "tool_progress" else ""
    content: Any = item.content
    match item.event_type:
        case "tool_call":
            return f"calls {content['tool']}"
        case "delegation_request":
            return f"asks {content['agent']}"
        case "tool_error" | "delegation_error":
            return f"{item.metadata.get('tool') or item.metadata.get('agent')} failed"
        case "agent_response":
            return "answered"
        case _:
            return ""
