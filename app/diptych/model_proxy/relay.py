"""The web application of a ModelAPI's proxy: passes chats and their replies on, byte for byte.

Each chat is one exchange: read, checked, reserved, sent, streamed back, settled, logged.
"""

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.core.errors import InvalidRequest, RequestError
from diptych.core.text import some
from diptych.http.errors import RunFailed, add_error_handlers
from diptych.http.run_reader import result_for_caller
from diptych.manifest.secret_sources import CurrentFile
from diptych.manifest.settings import TimeoutConfig
from diptych.model_proxy.budget import DayBudget, Reservation
from diptych.model_proxy.config import ProxyConfig
from diptych.model_proxy.metrics import ProxyMetrics
from diptych.model_proxy.upstream import EndpointWatch, Upstream
from diptych.model_proxy.usage import TAIL, expected_usage, reported_usage
from diptych.models.connection import read_refusal
from diptych.models.failures import AttemptFailure
from diptych.net.redaction import SECRETS, without_tokens
from diptych.net.strict_reading import read_strictly

CHAT: Final = "/v1/chat/completions"
MAX_SHOWN_MODELS = 20
_FIRST_ERROR = 400
_UNAUTHORIZED = 401
_NAMING = frozenset({"model", "models"})
"""The fields that name models: OpenRouter takes a list of `models`."""
_OF_THE_CONNECTION = frozenset(  # RFC 9110, 7.6.1; the server in front writes its own date
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"date", b"set-cookie"),
    }
)
_audit = logging.getLogger("diptych.audit")
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Exchange:
    """One request and its reply, as the audit log and the budget see it."""

    subject: str
    model: str = ""
    status: int = 0
    outcome: str = "cancelled"  # until it has ended otherwise
    why: str = ""
    is_charged: bool = False  # by the endpoint
    tail: bytes = b""  # of the reply
    reservation: Reservation | None = None


class ModelRelay:
    """The ASGI application of chats; `app` has the other paths, too.

    `live` counts the exchanges under way.
    """

    def __init__(
        self,
        config: CurrentFile[ProxyConfig],
        session: aiohttp.ClientSession,
        budget: DayBudget,
        metrics: ProxyMetrics,
    ) -> None:
        self._config = config
        self._session = session
        self._budget = budget
        self._metrics = metrics
        self._upstream = Upstream(session, config.current())
        self.watch = EndpointWatch(self.upstream)
        self.live = 0
        self.is_closing = False

    def app(self, *guards: Middleware) -> Starlette:
        app = Starlette(
            routes=[
                Route(CHAT, self, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/ready", self._ready),
            ],
            middleware=guards,
        )
        add_error_handlers(app)
        return app

    def upstream(self) -> Upstream:
        """Return the endpoint of the current configuration."""
        config = self._config.current()
        if config is not self._upstream.config:
            self._upstream = Upstream(self._session, config)
        return self._upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an exchange until its reply is complete, or its caller has gone."""
        caller, request = current_caller(), Request(scope, receive)
        exchange = Exchange(str(caller.subject))
        self.live += 1
        try:
            caller.require(Right.ASK)
            body = await request.body()
            work = self._pass_on(exchange, request, body, send)
            await result_for_caller(receive, work, _nothing)
        except ClientDisconnect:
            pass
        except (RequestError, RunFailed) as error:
            exchange.why = str(error)
            if exchange.outcome != "failed":
                exchange.outcome = "refused"
            raise
        finally:
            self.live -= 1
            self._end(exchange)

    async def _pass_on(self, exchange: Exchange, request: Request, body: bytes, send: Send) -> None:
        """Send a request, and stream the reply.

        Returning before the reply is complete makes the server close the connection.
        """
        upstream = self.upstream()
        config, timeouts = upstream.config, upstream.config.upstream.timeouts
        fields = await checked_request(body, config)
        exchange.model = fields["model"]
        if config.per_day:
            expected = await expected_usage(body, fields)
            exchange.reservation = await self._budget.reserve(config, exchange.model, expected)
        del fields  # takes more memory than the body
        began = asyncio.get_running_loop().time()
        exchange.is_charged = True
        try:
            response = await upstream.post(request.headers, body, began + timeouts.total)
        except AttemptFailure as failure:
            exchange.outcome, exchange.is_charged = "failed", False
            raise _failed(failure) from None
        exchange.status = response.status
        self.watch.is_key_refused = response.status == _UNAUTHORIZED
        if response.status >= _FIRST_ERROR:
            exchange.outcome, exchange.is_charged = "failed", False
            found = redacted(await read_refusal(response))
            await send(_start(response, b"content-length"))
            await send(_body(found))
            return
        try:
            await self._stream(exchange, response, timeouts, began, send)
        except (TimeoutError, aiohttp.ClientError) as error:
            what = "did not go on" if isinstance(error, TimeoutError) else "broke its reply off"
            seconds = asyncio.get_running_loop().time() - began
            exchange.outcome, exchange.why = "failed", f"the endpoint {what} after {seconds:.3g} s"
            _logger.warning("%s", exchange.why)
        finally:
            response.close()

    async def _stream(
        self,
        exchange: Exchange,
        response: aiohttp.ClientResponse,
        timeouts: TimeoutConfig,
        began: float,
        send: Send,
    ) -> None:
        now, end = asyncio.get_running_loop().time, began + timeouts.total
        await send(_start(response))
        async with asyncio.timeout_at(min(end, began + timeouts.first_byte)) as timer:
            while piece := await response.content.readany():
                if not exchange.tail:
                    self._metrics.observe_first_byte(now() - began)
                timer.reschedule(end)  # a slow reader is not the endpoint's fault
                await send(_body(piece, more=True))
                exchange.tail = (exchange.tail + piece)[-TAIL:]
                timer.reschedule(min(end, now() + timeouts.idle))
            await send(_body(b""))
        exchange.outcome = "ok"

    def _end(self, exchange: Exchange) -> None:
        """Settle, count and log an exchange."""
        usage = reported_usage(exchange.tail)
        if reserved := exchange.reservation:
            charged = (usage or reserved.expected) if exchange.is_charged else None
            self._budget.settle(reserved, charged)
        self._metrics.count(exchange.subject, exchange.outcome, usage)
        line: dict[str, Any] = {
            "subject": exchange.subject,
            "right": "ask",
            "what": "model",
            "model": without_tokens(exchange.model)[:200],
            "outcome": exchange.outcome,
            "status": exchange.status,
        }
        if usage:
            line |= {"prompt_tokens": usage.prompt_tokens}
            line |= {"completion_tokens": usage.completion_tokens}
        if exchange.why:
            line["why"] = without_tokens(exchange.why)[:300]
        level = logging.WARNING if exchange.outcome == "refused" else logging.INFO
        _audit.log(level, "%s", json.dumps(line, ensure_ascii=True))

    async def _models(self, _: Request) -> Response:
        """List the endpoint's models, without those that Agents may not use."""
        current_caller().require(Right.ASK)
        upstream = self.upstream()
        try:
            status, models = await upstream.models(upstream.config.upstream.timeouts.first_byte)
        except AttemptFailure as failure:
            raise _failed(failure) from None
        if status >= _FIRST_ERROR:
            raise _failed(AttemptFailure("model_failed", f"The endpoint has no list ({status})."))
        return JSONResponse({"object": "list", "data": models})

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        """Answer whether it takes requests; callers with any right see how the endpoint is."""
        body: dict[str, object] = {"status": "shutting down" if self.is_closing else "ready"}
        if current_caller().rights:
            config, reason = self._config.current(), self.watch.reason
            notes = self._config.problem, self._budget.unavailable_reason()
            body |= {
                "modelapi": config.name,
                "endpoint": {"is_ok": not reason, "reason": reason},
                "models": self.watch.models,
                "notes": [note for note in notes if note],
            }
        return JSONResponse(body, 503 if self.is_closing else 200)


async def checked_request(body: bytes, config: ProxyConfig) -> dict[str, Any]:
    """Return the fields of a request, whose model is allowed. Raises `RequestError`."""
    try:
        fields = await read_strictly(body)
    except ValueError as error:
        message = f"the body is not valid JSON: {error}"
        raise InvalidRequest(message, code="invalid_json") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    # Servers written in Go take keys in any case.
    odd = [name for name in fields if name.casefold() in _NAMING and name not in _NAMING]
    if odd:
        raise InvalidRequest(f"write the field {odd[0]!r} in lower case")
    others = fields.get("models") or []
    for model in (fields.get("model"), *(others if isinstance(others, list) else [others])):
        if not isinstance(model, str):
            raise InvalidRequest(f"model is required: {_names(config)}", param="model")
        if not config.allows(model):
            message = f"ModelAPI {config.name} has no model {model[:200]!r}: {_names(config)}"
            raise RequestError(message, param="model", code="model_not_found")
    return fields


def redacted(body: bytes) -> bytes:
    """Return the same bytes, but for secrets: an error may quote the key."""
    text = body.decode("latin-1")
    safe = SECRETS.redact(text)
    return body if safe is text else safe.encode("latin-1")


def _names(config: ProxyConfig) -> str:
    models = config.spec.models
    if not models:
        return "any model of its endpoint can be named"
    return f"it has {some(models, MAX_SHOWN_MODELS)}"


def _failed(failure: AttemptFailure) -> RunFailed:
    return RunFailed(failure.code, failure.message, has_made_calls=False, headers={})


def _start(response: aiohttp.ClientResponse, *dropped: bytes) -> dict[str, Any]:
    raw = ((name.lower(), value) for name, value in response.raw_headers)
    headers = [(n, v) for n, v in raw if n not in _OF_THE_CONNECTION.union(dropped)]
    return {"type": "http.response.start", "status": response.status, "headers": headers}


def _body(content: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def _nothing() -> None:
    """Do nothing more when a caller hangs up: the exchange is cancelled."""
