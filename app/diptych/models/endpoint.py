"""One endpoint: asks it in its dialect, and learns what it takes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp

from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.circuit import CircuitBreaker
from diptych.models.connection import Connection
from diptych.models.dialect import Dialect
from diptych.models.encoding import encode_request, request_fields
from diptych.models.error_report import read_error_body
from diptych.models.failures import AttemptFailure, status_failure, tools_refused
from diptych.models.refusals import refuses_tools
from diptych.models.reply_reader import ReplyReader, read_whole
from diptych.models.timed_body import Limits, TimedBody
from diptych.models.tool_refusals import refused_tool, tool_refused
from diptych.net.sse import MEBIBYTE
from diptych.ports import Delta, Reply

MAX_ERROR_BYTES = MEBIBYTE // 16
ERROR_BODY_TIMEOUT = 1.0  # seconds
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

    `takes_tools` says whether it takes the `tools` field; None until it was sent once. It also does
    not if it refused one of them: `refused_tool`, "" where it does not say which.
    `wants_reasoning` says whether it wants reasoning back beside native calls; None until calls
    were sent whose reasoning is kept. `dialect` is what else was learned of it.
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

    def refused(self) -> list[str]:
        """Say what the endpoint turned out not to take, a clause each."""
        return _differences(Dialect(), self.dialect)

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
        """Ask for a streamed reply; give it with its first piece, before which it can be retried.

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
        """Send a request; if the endpoint refuses some of it, send it again without that.

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
        """Give the dialect to try next; None if there is none, and the failure stays.

        It is not raised here: its traceback would lead to it, by the argument. Raises the failure
        to take tools, or one of them, in its place.
        """
        if failure.report is None:
            return None
        adapted = dialect.adapted(failure.report, fields, request)
        if adapted is not None:
            return adapted
        if failure.code in {"context_too_long", "malformed_call"}:
            return None
        has_tool_messages = dialect.has_tool_messages(request)
        if ("tools" in fields or has_tool_messages) and refuses_tools(
            failure.report, has_tool_messages=has_tool_messages
        ):
            self.takes_tools, self.refused_tool = False, None
            raise tools_refused(failure) from None
        if "tools" in fields:
            name = refused_tool(failure.report, [tool.name for tool in request.tools])
            if name is not None:
                self.takes_tools, self.refused_tool = False, name
                raise tool_refused(failure, name) from None
        return None

    def _learn(self, dialect: Dialect, fields: Mapping[str, Any], request: ModelRequest) -> None:
        """Remember what went through; say once what is left out from now on."""
        if "tools" in fields:
            self.takes_tools = True
            if dialect.wants_reasoning or any(message.reasoning for message in request.messages):
                self.wants_reasoning = dialect.wants_reasoning
        if dialect is self.dialect:
            return
        learned = self.dialect.merged(dialect)
        self._warn(*_differences(self.dialect, learned))
        self.dialect = learned

    def _warn(self, *clauses: str) -> None:
        for words in clauses:
            _logger.warning("%s (%s) %s", self.origin, self.settings.name, words)

    async def _complete(self, attempt: _Attempt) -> Reply:
        body, secrets = await self._open(attempt)
        if not attempt.fields["stream"]:
            try:
                reply = await read_whole(body, _names(attempt.request), secrets)
            finally:
                body.close()
            if not reply.usage.is_known:
                self._streams_usage = True  # nor does it say any otherwise
            return reply
        reader = ReplyReader(body, _names(attempt.request), secrets)
        began = asyncio.get_running_loop().time()
        try:
            reply = await reader.read_all()
        finally:
            reader.close()
        if reply.finish_reason == "tool_calls" and not reply.calls:
            return await self._complete_lost_calls(attempt)
        if not reply.usage.is_known and not reader.is_cut and self._streams_usage is None:
            took = asyncio.get_running_loop().time() - began
            if took > attempt.limits.first_byte / 2:  # a whole reply might not come in time
                return reply
            self._streams_usage = False
            self._warn("streams no usage: phase 1 is asked for whole replies")
        return reply

    async def _complete_lost_calls(self, attempt: _Attempt) -> Reply:
        """Ask for a reply as a whole, of which a stream had no call where it said so."""
        self.dialect = replace(self.dialect, streams_tools=False)
        self._warn(*_differences(Dialect(), Dialect(streams_tools=False)))
        fields = {k: v for k, v in attempt.fields.items() if k != "stream_options"}
        return await self._complete(replace(attempt, fields={**fields, "stream": False}))

    async def _stream(self, attempt: _Attempt) -> tuple[ReplyReader, Delta]:
        body, secrets = await self._open(attempt)
        reader = ReplyReader(body, _names(attempt.request), secrets)
        try:
            return reader, await reader.next()
        except BaseException:
            reader.close()
            raise

    async def _open(self, attempt: _Attempt) -> tuple[TimedBody, list[str]]:
        """Send a request; give its success with the body unread, and the secrets that were sent."""
        headers = self.connection.headers()
        secrets = [
            value.removeprefix("Bearer ")
            for name, value in headers.items()
            if name != "Content-Type"
        ]
        request, limits = attempt.request, attempt.limits
        first_byte_deadline = asyncio.get_running_loop().time() + limits.first_byte
        body = encode_request(attempt.fields, request.messages, attempt.dialect, request.nonce)
        response = await self.connection.post(body, headers, first_byte_deadline, limits)
        if response.status not in _SUCCESS:
            report = read_error_body(await _error_body(response), response.status)
            raise status_failure(report, response.headers, secrets, self.connection.url)
        idle = self.settings.timeouts.idle
        return TimedBody(response, first_byte_deadline, idle, limits), secrets


def _names(request: ModelRequest) -> frozenset[str]:
    return frozenset(tool.name for tool in request.tools)


def _differences(old: Dialect, new: Dialect) -> list[str]:
    """Say what an endpoint turned out not to take, a line each."""
    kinds = ", ".join(sorted(new.refused_formats - old.refused_formats))
    said = {
        "does not take the system role: its text goes to the first user message": (
            old.takes_system_role and not new.takes_system_role
        ),
        "does not take results as tool messages: calls and results are sent as text": (
            old.takes_tool_messages and not new.takes_tool_messages
        ),
        f"takes no response_format {kinds}: it is left out": bool(kinds),
        "wants reasoning back beside native calls: it is kept with them": (
            new.wants_reasoning and not old.wants_reasoning
        ),
        f"wants {new.max_tokens_name}": old.max_tokens_name != new.max_tokens_name,
        "does not stream: it is asked for whole replies": old.streams and not new.streams,
        "does not stream calls of tools: it is asked for whole replies where tools are offered": (
            old.streams_tools and not new.streams_tools
        ),
    }
    dropped = sorted(new.dropped - old.dropped)
    return [f"does not take {name}: it is left out" for name in dropped] + [
        words for words, is_new in said.items() if is_new
    ]


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of a refusal, as much of it as arrives in time."""
    body = b""
    try:
        async with asyncio.timeout(ERROR_BODY_TIMEOUT):
            while len(body) < MAX_ERROR_BYTES and (chunk := await response.content.readany()):
                body += chunk
    except (TimeoutError, aiohttp.ClientError):
        pass  # the status alone says most
    finally:
        if not response.closed:
            response.close()
    return body
