"""One endpoint: asks it in its dialect, and learns what it takes."""

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

MAX_ADAPTATIONS = 12  # of one request: as many things as an endpoint may refuse one by one
_SUCCESS = range(200, 300)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One request as it is sent."""

    request: ModelRequest
    fields: Mapping[str, Any]
    dialect: Dialect
    limits: Limits


class ModelEndpoint:
    """Asks one endpoint, in the way that it takes.

    `takes_tools` says whether it takes the `tools` field; None until it was sent once. It is also
    False if the endpoint refused one tool: `refused_tool`, "" if the endpoint does not name it.
    `wants_reasoning` says whether it wants reasoning back beside native calls; None until calls
    were sent whose reasoning is kept. `dialect` holds what else was learned about it.
    """

    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        """Take a session of `open_http_session`.

        Raises `ConfigError` if the endpoint is no URL.
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
        """Ask for a whole reply. Raises `AttemptFailure`.

        It is streamed all the same, so that a reply under way is known to be alive, unless the
        endpoint streams no usage. Where whole replies take too long, it is streamed from then on.
        """
        streamed = self._streams_usage is not False
        try:
            return await self._in_its_dialect(self._complete, request, limits, streamed=streamed)
        except AttemptFailure as failure:
            if not streamed and failure.code == "model_timeout":
                self._streams_usage = True
            raise

    async def stream(self, request: ModelRequest, limits: Limits) -> tuple[ReplyReader, Delta]:
        """Ask for a streamed reply; return it with its first piece, before which one may retry.

        Raises `AttemptFailure`.
        """
        return await self._in_its_dialect(self._stream, request, limits, streamed=True)

    async def _in_its_dialect(
        self,
        send: Callable[[_Attempt], Awaitable[_T]],
        request: ModelRequest,
        limits: Limits,
        *,
        streamed: bool,
    ) -> _T:
        """Send a request; if the endpoint refuses a part of it, send it again without that.

        What went through is remembered, and left out of all later requests.
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
            "The model endpoint refuses one part of the request after another. Check that it is "
            "an OpenAI-compatible API.",
        )

    def _adapted(
        self,
        failure: AttemptFailure,
        dialect: Dialect,
        fields: Mapping[str, Any],
        request: ModelRequest,
    ) -> Dialect | None:
        """Return the dialect to try next; None if there is none, and the failure stays.

        It is not raised here: its traceback would lead to it, by the argument. Raises instead the
        failure to take tools, or one of them.
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
                self.takes_tools, self.refused_tool = False, name
                raise tool_refused(failure, name) from None
        return None

    def _learn(self, dialect: Dialect, fields: Mapping[str, Any], request: ModelRequest) -> None:
        """Remember what went through; log once what is left out from now on."""
        if "tools" in fields:
            self.takes_tools = True
            if dialect.wants_reasoning or any(message.reasoning for message in request.messages):
                self.wants_reasoning = dialect.wants_reasoning
        if dialect is not self.dialect:
            self._speak(self.dialect.merged(dialect))

    def _speak(self, dialect: Dialect) -> None:
        self._warn(*dialect.refused(self.dialect))
        self.dialect = dialect

    def _warn(self, *clauses: str) -> None:
        for words in clauses:
            _logger.warning("%s (%s) %s", self.origin, self.settings.name, words)

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
            self._streams_usage = True  # whole replies have no usage either
        elif self._streams_usage is None:
            took = asyncio.get_running_loop().time() - began
            if took < attempt.limits.first_byte / 2:  # else a whole reply might not come in time
                self._streams_usage = False
                self._warn("streams no usage: phase 1 is asked for whole replies")
        return reply

    async def _complete_lost_calls(self, attempt: _Attempt, used: Usage) -> Reply:
        """Ask again for a whole reply, as the stream lost the calls that it announced."""
        self._speak(replace(self.dialect, streams_tools=False))
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
        """Send a request; return a reader of its success, of which nothing was read yet."""
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
