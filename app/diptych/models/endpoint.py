"""One endpoint: sends requests in its dialect, and learns the dialect from its refusals."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp

from diptych.core.messages import Usage
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.connection import Connection, Limits, read_refusal
from diptych.models.dialect import Dialect
from diptych.models.encoding import encode_request, request_fields
from diptych.models.error_report import read_error_body
from diptych.models.failures import AttemptFailure, status_failure, tool_refused, tools_refused
from diptych.models.health import CircuitBreaker
from diptych.models.refusals import refused_tool, refuses_tools
from diptych.models.reply_reader import ReplyReader, TimedBody
from diptych.ports import Delta, Reply

MAX_ADAPTATIONS = 12  # of one request, which an endpoint may refuse part by part
_SUCCESS = range(200, 300)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One request, as sent."""

    request: ModelRequest
    fields: Mapping[str, Any]
    dialect: Dialect
    limits: Limits


class ModelEndpoint:
    """Calls one endpoint, in its dialect.

    `takes_tools`: whether it supports the `tools` field; None until tools were sent once. Also
    False if it refused a single tool, `refused_tool` ("" if it did not name the tool).
    `wants_reasoning`: whether it requires reasoning to be sent back with native calls; None until
    calls with reasoning were sent. `dialect` holds everything else learned about it.
    """

    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        """Use a session from `open_http_session`.

        Raises `ConfigError` if the endpoint is not an HTTP URL.
        """
        self.settings = settings
        self.circuit = CircuitBreaker()
        self.takes_tools: bool | None = None
        self.refused_tool: str | None = None
        self.wants_reasoning: bool | None = None
        self._streams_usage: bool | None = None
        self.connection = Connection(session, settings)
        self.dialect = Dialect()

    @property
    def origin(self) -> str:
        """The endpoint's scheme, host and port."""
        return self.connection.origin

    async def complete(self, request: ModelRequest, limits: Limits) -> Reply:
        """Return a whole reply. Raises `AttemptFailure`.

        It is still streamed, which shows that a slow reply is alive, unless the endpoint reports
        no usage in streams. If a whole reply then times out, later ones are streamed after all.
        """
        streamed = self._streams_usage is not False
        try:
            return await self._send_adapted(self._complete, request, limits, streamed=streamed)
        except AttemptFailure as failure:
            if not streamed and failure.code == "model_timeout":
                self._streams_usage = True
            raise

    async def stream(self, request: ModelRequest, limits: Limits) -> tuple[ReplyReader, Delta]:
        """Start a streamed reply; return its reader and first delta. Retrying is safe until then.

        Raises `AttemptFailure`.
        """
        return await self._send_adapted(self._stream, request, limits, streamed=True)

    async def _send_adapted(
        self,
        send: Callable[[_Attempt], Awaitable[_T]],
        request: ModelRequest,
        limits: Limits,
        *,
        streamed: bool,
    ) -> _T:
        """Send a request; while the endpoint refuses parts of it, adapt it and send it again.

        The dialect that worked is remembered for later requests.
        """
        dialect = self.dialect
        for _ in range(MAX_ADAPTATIONS):
            fields = request_fields(self.settings, request, dialect, streamed=streamed)
            try:
                result = await send(_Attempt(request, fields, dialect, limits))
            except AttemptFailure as failure:
                adapted = self._adapted(failure, dialect, fields, request)
                if adapted is None:
                    raise
                dialect = adapted
            else:
                self._learn(dialect, fields, request)
                return result
        raise AttemptFailure(
            "model_refused",
            "The model endpoint keeps refusing parts of the request. Check that it is an "
            "OpenAI-compatible API.",
        )

    def _adapted(
        self,
        failure: AttemptFailure,
        dialect: Dialect,
        fields: Mapping[str, Any],
        request: ModelRequest,
    ) -> Dialect | None:
        """Return the dialect to try next; None if there is none, and the failure stands.

        Raises the `tools_refused` failure if the endpoint refuses the tools, or one of them. Never
        raises `failure` itself: as an argument of this frame, it would form a reference cycle.
        """
        report = failure.report
        if report is None:
            return None
        adapted = dialect.adapted(report, fields, request)
        if adapted is not None:
            return adapted
        if failure.code in {"context_too_long", "malformed_call"}:
            return None
        has_tools, has_messages = "tools" in fields, dialect.has_tool_messages(request)
        if has_tools or has_messages:
            if refuses_tools(report, has_tool_messages=has_messages):
                self.takes_tools, self.refused_tool = False, None
                raise tools_refused(failure) from None
            name = refused_tool(report, [tool.name for tool in request.tools])
            if has_tools and name is not None:
                if not any(t.is_callers for t in request.tools if name in ("", t.name)):
                    self.takes_tools, self.refused_tool = False, name
                raise tool_refused(failure, name) from None
        return None

    def _learn(self, dialect: Dialect, fields: Mapping[str, Any], request: ModelRequest) -> None:
        """Remember the dialect that worked; log each newly unsupported feature once."""
        if "tools" in fields:
            self.takes_tools = True
            if dialect.wants_reasoning or any(message.reasoning for message in request.messages):
                self.wants_reasoning = dialect.wants_reasoning
        if dialect is not self.dialect:
            self._set_dialect(self.dialect.merged(dialect))

    def _set_dialect(self, dialect: Dialect) -> None:
        self._warn(*dialect.refused(self.dialect))
        self.dialect = dialect

    def _warn(self, *clauses: str) -> None:
        for clause in clauses:
            _logger.warning("%s (%s) %s", self.origin, self.settings.name, clause)

    async def _complete(self, attempt: _Attempt) -> Reply:
        reader = await self._open(attempt)
        began = asyncio.get_running_loop().time()
        try:
            reply = await reader.read_all()
        finally:
            reader.close()
        is_streamed = attempt.fields["stream"]
        if is_streamed and reply.finish_reason == "tool_calls" and not reply.calls:
            return await self._complete_lost_calls(attempt, reply.usage)
        if reply.usage.is_known or reader.is_cut:
            return reply
        if not is_streamed:
            self._streams_usage = True  # whole replies report no usage either
        elif self._streams_usage is None:
            took = asyncio.get_running_loop().time() - began
            if took < attempt.limits.first_byte / 2:  # else a whole reply might not come in time
                self._streams_usage = False
                self._warn("reports no usage in streams: phase 1 requests whole replies")
        return reply

    async def _complete_lost_calls(self, attempt: _Attempt, used: Usage) -> Reply:
        """Request a whole reply instead: the stream lost the calls that it announced."""
        self._set_dialect(replace(self.dialect, streams_tools=False))
        fields = {k: v for k, v in attempt.fields.items() if k != "stream_options"}
        reply = await self._complete(replace(attempt, fields={**fields, "stream": False}))
        return replace(reply, usage=used + reply.usage)

    async def _stream(self, attempt: _Attempt) -> tuple[ReplyReader, Delta]:
        reader = await self._open(attempt)
        try:
            return reader, await reader.next()
        except BaseException:
            reader.close()
            raise

    async def _open(self, attempt: _Attempt) -> ReplyReader:
        """Send a request; return a reader of the reply, which is still unread."""
        connection, request, limits = self.connection, attempt.request, attempt.limits
        headers = connection.headers()
        secrets = connection.secrets(headers)
        first_byte_deadline = asyncio.get_running_loop().time() + limits.first_byte
        body = encode_request(attempt.fields, request.messages, attempt.dialect, request.nonce)
        response = await connection.post(body, headers, first_byte_deadline, limits)
        if response.status not in _SUCCESS:
            report = read_error_body(await read_refusal(response), response.status)
            raise status_failure(report, response.headers, secrets, connection.url)
        timed = TimedBody(response, first_byte_deadline, self.settings.timeouts.idle, limits)
        names = frozenset(tool.name for tool in request.tools)
        return ReplyReader(timed, names, secrets, is_whole=not attempt.fields["stream"])
