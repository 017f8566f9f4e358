"""Probes an endpoint's features with as few tokens as possible.

Sends three chats of a few tokens each, a fourth with an agent's own tools, and reads the server's
list of models. Failed requests are not retried: the probe reports what is wrong now.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import orjson

from diptych.core.errors import ModelCode
from diptych.core.messages import JSON, Message
from diptych.core.model_request import FunctionTool, ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.connection import Limits, with_proxies
from diptych.models.endpoint import ModelEndpoint
from diptych.models.failures import AttemptFailure
from diptych.ports import Reply

_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
FETCH_TIMEOUT = 10.0  # seconds
CHAT_TOKENS = 8  # any reply will do
CALL_TOKENS = 48  # enough for a call without arguments, and a little reasoning before it
SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_PING = FunctionTool("ping", "Says pong.", {"type": "object", "properties": {}})
_SPENT = "output limit was reached"  # OpenAI accepted the request; reasoning used all the tokens
# Fields of a listed model with its context window, rather than its training length.
_CONTEXT_FIELDS = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "context_length",  # OpenRouter, Together
    "context_window",  # Groq
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic, LiteLLM
)


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed request: its code, a message without secrets, and the HTTP status or 0."""

    code: ModelCode
    message: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Capability:
    """Whether an endpoint supports a feature (`is_taken`), and whether its model uses it.

    `failure` is set if the request failed for a reason other than the feature. For tools,
    `refusal` says why the agent's own tools are refused although the test tool was accepted.
    """

    is_taken: bool = False
    is_used: bool = False
    failure: Failed | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class EndpointFindings:
    """The findings about one model at one endpoint.

    `models` are the names that the endpoint lists, None if it has no list. `seconds` is the
    duration of the first reply; None if there was none, and then `failure` says why, and only the
    list of models was tried. `tools` and `schema` are None if untested. `context` is the context
    window in tokens, if the server reports it. `refused` describes the unsupported features.
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
    """Probe one endpoint, without its fallbacks, over a session from `open_http_session`.

    Raises `ConfigError` if the endpoint is not an HTTP URL.
    """
    return await _Probe(session, with_proxies(settings)).run()


async def probe_models(session: aiohttp.ClientSession, settings: ModelConfig) -> EndpointFindings:
    """Ask an endpoint for its list of models only, which costs no tokens."""
    return await _Probe(session, with_proxies(settings)).list_models()


async def probe_tools(
    session: aiohttp.ClientSession,
    settings: ModelConfig,
    functions: tuple[FunctionTool, ...],
    found: EndpointFindings,
) -> EndpointFindings:
    """Check whether an endpoint that supports tools accepts these; return the findings with that.

    Endpoints validate tools more strictly than MCP does.
    """
    probe = _Probe(session, with_proxies(settings))
    reply = await probe.ask("Say ok.", CHAT_TOKENS, tools=functions)
    # Any other failure means that the endpoint is unhealthy, and says nothing about tools.
    is_refused = isinstance(reply, Failed) and reply.code == "tools_refused"
    refusal = reply.message if isinstance(reply, Failed) and is_refused else ""
    tools = replace(found.tools or Capability(), is_taken=not refusal, refusal=refusal)
    return replace(found, tools=tools, **probe.cost)


class _Probe:
    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        self._settings = settings
        self._endpoint = ModelEndpoint(session, settings)
        self._tokens = 0

    @property
    def cost(self) -> dict[str, Any]:
        """The requests made, and the tokens they used."""
        return {"requests": self._endpoint.connection.request_count, "tokens": self._tokens}

    async def run(self) -> EndpointFindings:
        endpoint = self._endpoint
        found = EndpointFindings(self._settings.name, endpoint.origin)
        began_at = asyncio.get_running_loop().time()
        first = await self._attempt(self._streamed)
        if isinstance(first, Failed):
            found = replace(found, failure=first)
        else:
            seconds = asyncio.get_running_loop().time() - began_at
            found = replace(found, seconds=seconds, tools=await self._try_tools())
            found = replace(found, schema=await self._try_schema())
        if found.failure is None or found.failure.status not in {0, 401, 403}:
            found = await self._with_models(found)
        return replace(
            found,
            schema_kind=endpoint.dialect.format_for(SCHEMA),
            refused=tuple(endpoint.dialect.refused()),
            **self.cost,
        )

    async def list_models(self) -> EndpointFindings:
        connection = self._endpoint.connection
        found = EndpointFindings("", self._endpoint.origin)
        try:
            status, body = await connection.fetch("models", connection.headers(), FETCH_TIMEOUT)
        except AttemptFailure as failure:
            return replace(found, failure=Failed(failure.code, failure.message, failure.status))
        models = read_models(body) if status == HTTPStatus.OK else None
        if models is None:
            code: ModelCode = "model_unauthorized" if status in _REFUSED else "model_refused"
            why = "refuses the key" if status in _REFUSED else "lists no models"
            message = f"{found.origin} {why} (status {status} for /models)"
            return replace(found, failure=Failed(code, message, status))
        return replace(found, models=tuple(model.name for model in models))

    async def ask(
        self,
        text: str,
        max_tokens: int,
        *,
        tools: tuple[FunctionTool, ...] = (),
        schema: dict[str, JSON] | None = None,
    ) -> Reply | Failed:
        """Send a request like those of phase 1."""
        request = replace(_request(text, max_tokens), tools=tools, output_schema=schema)
        return await self._attempt(lambda: self._endpoint.complete(request, self._limits()))

    async def _try_tools(self) -> Capability:
        reply = await self.ask("Call the function ping.", CALL_TOKENS, tools=(_PING,))
        if isinstance(reply, Reply):
            return Capability(is_taken=True, is_used=bool(reply.calls))
        return Capability(failure=None if reply.code == "tools_refused" else reply)

    async def _try_schema(self) -> Capability:
        reply = await self.ask('Answer with the JSON {"ok": true}.', CALL_TOKENS, schema=SCHEMA)
        if isinstance(reply, Failed):
            return Capability(failure=reply)
        is_taken = self._endpoint.dialect.format_for(SCHEMA) is not None
        found = _loaded(reply.text.encode())
        fits = isinstance(found, dict) and [*map(type, found.values())] == [bool] and "ok" in found
        return Capability(is_taken, is_taken and fits)

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

    async def _context_of_server(self, models: Sequence["ListedModel"]) -> int | None:
        """Ask Ollama for the context window, missing in its list; the model is loaded by now."""
        if "library" not in {model.owner for model in models}:
            return None
        return loaded_context(await self._fetch("/api/ps"), self._settings.name)

    async def _fetch(self, path: str) -> bytes:
        """Return the body of a successful response, otherwise b""."""
        connection = self._endpoint.connection
        try:
            status, found = await connection.fetch(path, connection.headers(), FETCH_TIMEOUT)
        except AttemptFailure:
            return b""
        return found if status == 200 else b""  # noqa: PLR2004

    async def _attempt(self, ask: Callable[[], Awaitable[Reply]]) -> Reply | Failed:
        try:
            reply = await ask()
        except AttemptFailure as failure:
            if failure.report is not None and _SPENT in failure.report.text:
                return Reply("", finish_reason="length")
            said = f" It said: {failure.said}" if failure.said else ""
            return Failed(failure.code, failure.message + said, failure.status)
        self._tokens += reply.usage.prompt_tokens + reply.usage.completion_tokens
        return reply

    async def _streamed(self) -> Reply:
        """Send a request like those for answers."""
        request = _request("Say ok.", CHAT_TOKENS)
        stream, delta = await self._endpoint.stream(request, self._limits())
        try:
            while delta.finish_reason is None:
                delta = await stream.next()
        finally:
            stream.close()
        return Reply("") if delta.usage is None else Reply("", delta.usage)

    def _limits(self) -> Limits:
        timeouts = self._settings.timeouts
        deadline = asyncio.get_running_loop().time() + timeouts.total
        return Limits(timeouts.first_byte, deadline, timeouts.total)


def _request(text: str, max_tokens: int) -> ModelRequest:
    return ModelRequest((Message("user", text),), parameters={"max_tokens": max_tokens})


# Lists of models. The API defines only `id`; servers add fields of their own. Unknown or malformed
# fields are ignored, never an error.


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A listed model: its name, its aliases, its owner, and its context window in tokens."""

    name: str
    aliases: frozenset[str] = frozenset()
    owner: str = ""
    context: int | None = None


def read_models(body: bytes) -> tuple[ListedModel, ...] | None:
    """Parse the response to `GET /models`; None if it is not a list of models."""
    found = _loaded(body)
    if isinstance(found, dict):
        found = found.get("data", found.get("models"))
    if not isinstance(found, list):  # Together sends a bare list
        return None
    entries = [entry for entry in found if isinstance(entry, dict)]
    models = tuple(model for entry in entries if (model := _listed(entry)))
    return models if entries or not found else None


def find_model(models: Sequence[ListedModel], name: str) -> ListedModel | None:
    """Return the listed model with this name, alias, or spelling of the name."""
    spellings = {name, f"models/{name}", f"{name}:latest"}  # Gemini's, Ollama's
    named = (model for model in models if model.name in spellings or name in model.aliases)
    return next(named, None)


def loaded_context(body: bytes, name: str) -> int | None:
    """Parse Ollama's `/api/ps`: return the context window that the model was loaded with."""
    models = _mapping(_loaded(body)).get("models")
    for model in models if isinstance(models, list) else ():
        if _mapping(model).get("name") in {name, f"{name}:latest"}:
            return _count(model.get("context_length"))
    return None


def _listed(entry: Mapping[str, Any]) -> ListedModel | None:
    name = entry.get("id") or entry.get("name")
    if not isinstance(name, str):
        return None
    aliases = entry.get("aliases")
    names = aliases if isinstance(aliases, list) else []
    counts = [_count(_mapping(entry.get("meta")).get("n_ctx"))]  # llama.cpp
    counts += [_count(entry.get(field)) for field in _CONTEXT_FIELDS]
    context = next((count for count in counts if count is not None), None)
    known = frozenset(alias for alias in names if isinstance(alias, str))
    return ListedModel(name, known, str(entry.get("owned_by") or ""), context)


def _loaded(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
