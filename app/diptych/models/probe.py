"""Finds out what an endpoint is and takes, with as few tokens as possible.

Three chats of a few tokens each, a fourth with an agent's own tools, and what the server says of
its models. What fails is not tried again: who asks wants to know what is wrong now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import orjson

from diptych.core.errors import ModelCode
from diptych.core.messages import JSON, Message
from diptych.core.model_request import FunctionTool, ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.connection import with_proxies
from diptych.models.endpoint import ModelEndpoint
from diptych.models.failures import AttemptFailure
from diptych.models.model_list import (
    ListedModel,
    find_model,
    loaded_context,
    props_context,
    read_models,
    shown_context,
)
from diptych.models.timed_body import Limits
from diptych.ports import Reply

FETCH_TIMEOUT = 10.0  # seconds
CHAT_TOKENS = 8  # of a reply; none is read but for its being there
CALL_TOKENS = 48  # enough for a call without arguments, and for little reasoning before it
SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_PING = FunctionTool("ping", "Says pong.", {"type": "object", "properties": {}})
_SPENT = "output limit was reached"  # OpenAI: reasoning has used all the tokens; it was taken


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that failed: its code, a sentence without secrets, and the status if there was one.

    The status is 0 if the endpoint gave none.
    """

    code: ModelCode
    message: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether an endpoint takes a part of the API, and whether its model makes use of it.

    `failure` is there if the request failed for another reason than a refusal of that part. Of
    tools, `refusal` says why the agent's own are refused where one of ours was taken.
    """

    is_taken: bool = False
    is_used: bool = False
    failure: Failed | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class EndpointFindings:
    """What was found out about one model at one endpoint.

    `models` are the names that the endpoint lists, None if it lists none. `seconds` is the time of
    the first reply, None if there was none: then `failure` says why, and nothing else was asked but
    the list. `tools` and `schema` are None if they were not tried. `context` is the window in
    tokens, if the server says it. `refused` are clauses on what it does not take.
    """

    name: str
    origin: str
    failure: Failed | None = None
    seconds: float | None = None
    models: tuple[str, ...] | None = None
    is_listed: bool = False
    tools: Capability | None = None
    schema: Capability | None = None
    schema_kind: str | None = None
    context: int | None = None
    refused: tuple[str, ...] = ()
    requests: int = 0
    tokens: int = 0


async def probe_endpoint(session: aiohttp.ClientSession, settings: ModelConfig) -> EndpointFindings:
    """Ask one endpoint; its fallbacks are not asked. Takes a session from `open_http_session`.

    Raises `ConfigError` if the endpoint is no URL.
    """
    return await _Probe(session, with_proxies(settings)).run()


async def probe_tools(
    session: aiohttp.ClientSession,
    settings: ModelConfig,
    functions: tuple[FunctionTool, ...],
    found: EndpointFindings,
) -> EndpointFindings:
    """Ask an endpoint that takes tools whether it takes these; give what was found, with that."""
    probe = _Probe(session, with_proxies(settings))
    refusal = await probe.refusal_of(functions)
    tools = replace(found.tools or Capability(), is_taken=not refusal, refusal=refusal)
    return replace(found, tools=tools, **probe.cost)


class _Probe:
    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        self._settings = settings
        self._endpoint = ModelEndpoint(session, settings)
        self._tokens = 0
        self._has_answered = False

    async def run(self) -> EndpointFindings:
        endpoint = self._endpoint
        found = EndpointFindings(self._settings.name, endpoint.origin)
        began_at = asyncio.get_running_loop().time()
        first = await self._attempt(self._streamed)
        if isinstance(first, Reply):
            seconds = asyncio.get_running_loop().time() - began_at
            found = replace(found, seconds=seconds, tools=await self._try_tools())
            found = replace(found, schema=await self._try_schema())
        else:
            found = replace(found, failure=first)
        if found.failure is None or found.failure.status not in {0, 401, 403}:
            found = await self._with_models(found)
        return replace(
            found,
            schema_kind=endpoint.dialect.format_for(SCHEMA),
            refused=tuple(endpoint.refused()),
            **self.cost,
        )

    @property
    def cost(self) -> dict[str, Any]:
        """The requests that were made, and the tokens that they took."""
        return {"requests": self._endpoint.connection.request_count, "tokens": self._tokens}

    async def _try_tools(self) -> Capability:
        reply = await self._attempt(
            lambda: self._whole("Call the function ping.", CALL_TOKENS, tools=(_PING,))
        )
        if isinstance(reply, Reply):
            return Capability(is_taken=True, is_used=bool(reply.calls))
        return Capability(failure=None if reply.code == "tools_refused" else reply)

    async def refusal_of(self, functions: tuple[FunctionTool, ...]) -> str:
        """Say why an agent's tools are refused: endpoints check them more strictly than MCP."""
        reply = await self._attempt(lambda: self._whole("Say ok.", CHAT_TOKENS, tools=functions))
        if isinstance(reply, Failed) and reply.code == "tools_refused":
            return reply.message
        return ""  # it was taken, or is ill now, and then nothing is said of tools

    async def _try_schema(self) -> Capability:
        reply = await self._attempt(
            lambda: self._whole('Answer with the JSON {"ok": true}.', CALL_TOKENS, schema=SCHEMA)
        )
        if isinstance(reply, Failed):
            return Capability(failure=reply)
        is_taken = self._endpoint.dialect.format_for(SCHEMA) is not None
        return Capability(is_taken, is_taken and _fits(reply.text))

    async def _with_models(self, found: EndpointFindings) -> EndpointFindings:
        models = read_models(await self._fetch("models"))
        if models is None:
            return found
        listed = find_model(models, self._settings.name)
        context = listed.context if listed else None
        if context is None and found.failure is None:
            context = await self._context_of_server(models)
        names = tuple(model.name for model in models)
        return replace(found, models=names, is_listed=listed is not None, context=context)

    async def _context_of_server(self, models: Sequence[ListedModel]) -> int | None:
        """Ask a server of our own kind for what its list does not say."""
        owners = {model.owner for model in models}
        if "llamacpp" in owners:
            return props_context(await self._fetch("/props"))
        if "library" in owners:  # Ollama
            name = self._settings.name
            return loaded_context(await self._fetch("/api/ps"), name) or shown_context(
                await self._fetch("/api/show", orjson.dumps({"model": name}))
            )
        return None

    async def _fetch(self, path: str, body: bytes | None = None) -> bytes:
        """Give what the server says; nothing if it says nothing."""
        connection = self._endpoint.connection
        deadline = asyncio.get_running_loop().time() + FETCH_TIMEOUT
        try:
            status, found = await connection.fetch(path, connection.headers(), deadline, body)
        except AttemptFailure:
            return b""
        return found if status == 200 else b""  # noqa: PLR2004

    async def _attempt(self, ask: Callable[[], Awaitable[Reply]]) -> Reply | Failed:
        try:
            reply = await self._on_an_open_connection(ask)
        except AttemptFailure as failure:
            report = failure.report
            if report is not None and _SPENT in report.text:
                return Reply("", finish_reason="length")
            message = f"{failure.message} It said: {failure.said}" if failure.said else None
            status = report.status if report is not None else 0
            return Failed(failure.code, message or failure.message, status)
        self._has_answered = True
        self._tokens += reply.usage.prompt_tokens + reply.usage.completion_tokens
        return reply

    async def _on_an_open_connection(self, ask: Callable[[], Awaitable[Reply]]) -> Reply:
        """Ask once more if the server has closed the connection that an earlier reply came by."""
        try:
            return await ask()
        except AttemptFailure as failure:
            if not (self._has_answered and failure.code == "model_unreachable"):
                raise
        return await ask()

    async def _streamed(self) -> Reply:
        """Ask as an agent does for its answer."""
        stream, delta = await self._endpoint.stream(
            _request("Say ok.", CHAT_TOKENS), self._limits()
        )
        try:
            while delta.finish_reason is None:
                delta = await stream.next()
        finally:
            stream.close()
        usage = delta.usage
        return Reply("") if usage is None else Reply("", usage)

    async def _whole(
        self,
        text: str,
        max_tokens: int,
        *,
        tools: tuple[FunctionTool, ...] = (),
        schema: dict[str, JSON] | None = None,
    ) -> Reply:
        request = replace(_request(text, max_tokens), tools=tools, output_schema=schema)
        return await self._endpoint.complete(request, self._limits())

    def _limits(self) -> Limits:
        timeouts = self._settings.timeouts
        deadline = asyncio.get_running_loop().time() + timeouts.total
        return Limits(timeouts.first_byte, deadline, timeouts.total)


def _request(text: str, max_tokens: int) -> ModelRequest:
    return ModelRequest((Message("user", text),), parameters={"max_tokens": max_tokens})


def _fits(text: str) -> bool:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and isinstance(found.get("ok"), bool) and len(found) == 1
