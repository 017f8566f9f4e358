"""The web application of a ModelAPI's proxy: passes requests and replies on, byte for byte.

Each request is one exchange: read, checked, reserved, sent, streamed back, settled, logged.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import aiohttp
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from diptych.access.caller import Caller, current_caller
from diptych.access.grants import Right
from diptych.core.messages import Usage
from diptych.http.errors import error_body, error_response
from diptych.model_proxy.budget import DayBudget, Reservation
from diptych.model_proxy.config import ConfigFile, ProxyConfig
from diptych.model_proxy.endpoint_watch import EndpointWatch
from diptych.model_proxy.metrics import ProxyMetrics
from diptych.model_proxy.refused import Refused
from diptych.model_proxy.upstream import Upstream, error_bytes, reply_headers
from diptych.model_proxy.usage import UsageReader, expected_usage
from diptych.models.failures import AttemptFailure
from diptych.net.redaction import without_tokens
from diptych.net.strict_reading import read_strictly

MAX_SHOWN_MODELS = 20
PATHS: Final = {"/v1/chat/completions": True, "/v1/responses": True, "/v1/embeddings": False}
"""The paths that are passed on, and whether the model writes a reply there."""
MODELS: Final = "/v1/models"
_FIRST_ERROR = 400
_BYTES_OF_A_TOKEN = 4
_UNAUTHORIZED = 401
_SERVER_ERROR = 500
_NAMING = frozenset({"model", "models"})
"""The fields that name models."""
_audit = logging.getLogger("diptych.audit")
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Exchange:
    """One request and its reply, as the audit log and the budget see it."""

    subject: str
    path: str
    model: str = ""
    status: int = 0
    outcome: str = "cancelled"  # until it has ended otherwise
    why: str = ""
    is_sent: bool = False
    has_begun: bool = False  # the reply
    expected: Usage = field(default_factory=Usage)
    reader: UsageReader = field(default_factory=UsageReader)
    reservation: Reservation | None = None

    def usage(self) -> tuple[Usage | None, bool]:
        """Return what the endpoint charges, if known, and whether that is an estimate.

        Only a budget needs estimates.
        """
        if not self.is_sent or self.status >= _FIRST_ERROR:
            return None, False
        reported = self.reader.usage()
        if reported or not self.reservation:
            return reported, False
        written = self.reader.events or self.reader.size // _BYTES_OF_A_TOKEN
        has_reply = self.expected.completion_tokens > 0
        return Usage(self.expected.prompt_tokens, written if has_reply else 0), True


_Work: TypeAlias = Callable[[Exchange, Scope, bytes, Send], Awaitable[None]]


class ModelRelay:
    """The ASGI application behind the access guard and the body guard.

    `live` counts the exchanges under way.
    """

    def __init__(
        self,
        config: ConfigFile,
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

    def upstream(self) -> Upstream:
        """Return the endpoint of the current configuration."""
        config = self._config.current()
        if config is not self._upstream.config:
            self._upstream = Upstream(self._session, config)
            self.watch.check_soon()
        return self._upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "POST", path if path in PATHS:
                await self._exchange(self._pass_on, scope, receive, send)
            case "GET", "/v1/models":
                await self._exchange(self._list_models, scope, receive, send)
            case "GET" | "HEAD", "/health":
                await _json({"status": "ok"})(scope, receive, send)
            case "GET" | "HEAD", "/ready":
                await self._ready()(scope, receive, send)
            case method, path:
                await _no_route(method, path)(scope, receive, send)

    async def _exchange(self, work: _Work, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an exchange until its reply is complete, or its caller has gone."""
        caller = current_caller()
        exchange = Exchange(str(caller.subject or "anybody"), scope["path"])
        self.live += 1
        try:
            _require_ask(caller)
            body = await _read(receive)
            if body is not None:
                await _unless_gone(work(exchange, scope, body, send), receive)
        except Refused as refused:
            exchange.status, exchange.outcome = refused.status, refused.outcome
            exchange.why = refused.message
            content = error_body(refused.message, refused.kind, code=refused.code)
            response = error_response(scope["path"], refused.status, content, refused.headers)
            await response(scope, receive, send)
        finally:
            self.live -= 1
            self._end(exchange)

    async def _pass_on(self, exchange: Exchange, scope: Scope, body: bytes, send: Send) -> None:
        upstream = self.upstream()
        config, has_reply = upstream.config, PATHS[exchange.path]
        body, fields = await checked_request(body, config)
        exchange.model = fields["model"]
        if config.per_day:
            exchange.expected = await expected_usage(body, fields, has_reply=has_reply)
            exchange.reservation = await self._budget.reserve(
                config, exchange.model, exchange.expected
            )
        del fields  # takes more memory than the body
        began = asyncio.get_running_loop().time()
        try:
            await self._relay(exchange, upstream, scope["headers"], body, send)
        except AttemptFailure as failure:
            exchange.is_sent = False
            raise self._failed(failure) from None
        except (TimeoutError, aiohttp.ClientError) as error:
            seconds = asyncio.get_running_loop().time() - began
            is_late = isinstance(error, TimeoutError)
            what = "did not go on" if is_late else "broke its reply off"
            exchange.outcome, exchange.why = "failed", f"the endpoint {what} after {seconds:.3g} s"
            _logger.warning("%s: %s", exchange.path, exchange.why)
            if not exchange.has_begun:
                status, code = (504, "model_timeout") if is_late else (502, "model_cut")
                raise _endpoint_failed(status, code, exchange.why) from None

    async def _relay(
        self,
        exchange: Exchange,
        upstream: Upstream,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        send: Send,
    ) -> None:
        """Send the request, and stream the reply.

        Returning before the reply is complete makes the server close the connection. Raises
        `AttemptFailure`, `TimeoutError` and aiohttp's errors.
        """
        timeouts, now = upstream.config.upstream.timeouts, asyncio.get_running_loop().time
        began = now()
        end = began + timeouts.total
        exchange.is_sent = True
        async with asyncio.timeout_at(min(end, began + timeouts.first_byte)) as timer:
            response = await upstream.send(
                exchange.path.removeprefix("/v1"),
                headers,
                body,
                is_counted=exchange.reservation is not None,
            )
            try:
                exchange.status = response.status
                if response.status >= _FIRST_ERROR:
                    await self._pass_error_on(exchange, response, send)
                    return
                await send(_start(response))
                exchange.has_begun = True
                while piece := await response.content.readany():
                    if not exchange.reader.size:
                        self._metrics.observe_first_byte(now() - began)
                    timer.reschedule(end)  # a slow reader is not the endpoint's fault
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    exchange.reader.add(piece)
                    timer.reschedule(min(end, now() + timeouts.idle))
                await send({"type": "http.response.body", "body": b""})
                exchange.outcome = "ok"
                self.watch.note_reply()
            finally:
                response.close()

    async def _pass_error_on(
        self, exchange: Exchange, response: aiohttp.ClientResponse, send: Send
    ) -> None:
        """Pass an error on; it may quote the key, which is redacted."""
        found = await error_bytes(response)
        exchange.outcome, exchange.has_begun = "failed", True
        if exchange.status == _UNAUTHORIZED:
            self.watch.note_refused_key()
        elif exchange.status >= _SERVER_ERROR:
            self.watch.check_soon()
        start = _start(response)
        kept = [(n, v) for n, v in start["headers"] if n != b"content-length"]
        start["headers"] = [*kept, (b"content-length", b"%d" % len(found))]
        await send(start)
        await send({"type": "http.response.body", "body": found})

    async def _list_models(self, exchange: Exchange, _: Scope, __: bytes, send: Send) -> None:
        """Pass the endpoint's list on, without the models that Agents may not use."""
        upstream = self.upstream()
        seconds = upstream.config.upstream.timeouts.first_byte
        try:
            status, found = await upstream.list_models(seconds)
        except AttemptFailure as failure:
            raise self._failed(failure) from None
        exchange.status = status
        exchange.outcome = "ok" if status < _FIRST_ERROR else "failed"
        await _json(found, status)({"type": "http"}, _nothing, send)

    def _failed(self, failure: AttemptFailure) -> Refused:
        self.watch.check_soon()
        status = {"model_unauthorized": 503, "model_timeout": 504}.get(failure.code, 502)
        return _endpoint_failed(status, failure.code, failure.message)

    def _end(self, exchange: Exchange) -> None:
        """Settle, count and log an exchange."""
        usage, is_estimate = exchange.usage()
        if exchange.reservation:
            self._budget.settle(exchange.reservation, usage)
        self._metrics.count(exchange.subject, exchange.outcome, None if is_estimate else usage)
        is_refused = exchange.outcome == "refused"
        line: dict[str, Any] = {
            "subject": exchange.subject,
            "right": "ask",
            "what": "model",
            "path": exchange.path,
            "model": without_tokens(exchange.model)[:200],
            "outcome": exchange.outcome,
            "status": exchange.status,
        }
        if usage:
            line |= {"prompt_tokens": usage.prompt_tokens}
            line |= {"completion_tokens": usage.completion_tokens, "is_estimate": is_estimate}
        if exchange.why:
            line["why"] = without_tokens(exchange.why)[:300]
        level = logging.WARNING if is_refused else logging.INFO
        _audit.log(level, "%s", json.dumps(line, ensure_ascii=True))

    def _ready(self) -> Response:
        """Answer whether it takes requests; callers with any right see how the endpoint is."""
        upstream = self.upstream()
        state, status = self.watch.state, "shutting down" if self.is_closing else "ready"
        body: dict[str, object] = {"status": status}
        if current_caller().rights:
            reasons = self._config.problem, self._budget.unavailable_reason()
            body |= {
                "modelapi": upstream.config.name,
                "endpoint": {"is_ok": state.is_ok, "reason": state.reason},
                "models": list(state.models),
                "notes": [reason for reason in reasons if reason],
            }
        return _json(body, 503 if self.is_closing else 200)


def _require_ask(caller: Caller) -> None:
    """Raise `Refused` for a caller with other rights, such as an auditor, who may only read."""
    if not caller.may(Right.ASK):
        raise Refused(403, "forbidden", f"this needs the right {Right.ASK.value!r}")


def _endpoint_failed(status: int, code: str, message: str) -> Refused:
    return Refused(status, code, message, kind="server_error", outcome="failed")


async def checked_request(body: bytes, config: ProxyConfig) -> tuple[bytes, dict[str, Any]]:
    """Check the model that a request names; return its bytes and fields.

    Only a request without a model is changed: it gets the default. Raises `Refused`.
    """
    try:
        fields = await read_strictly(body)
    except ValueError as error:
        raise Refused(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refused(400, "invalid_json", "the body must be a JSON object")
    # Servers written in Go take keys in any case; OpenRouter takes a list of `models`.
    odd = [name for name in fields if name.casefold() in _NAMING and name not in _NAMING]
    if odd:
        raise Refused(400, "invalid_request", f"write the field {odd[0]!r} in lower case")
    if fields.get("model") is None and "model" not in fields and config.default:
        fields = {"model": config.default, **fields}
        rest = body.lstrip()[1:].lstrip()
        comma = b"" if rest.startswith(b"}") else b","
        body = b'{"model":' + orjson.dumps(config.default) + comma + rest
    for model in (fields.get("model"), *_as_list(fields.get("models"))):
        if not isinstance(model, str):
            raise Refused(400, "invalid_request", f"model is required: {_names(config)}")
        if not config.allows(model):
            message = f"ModelAPI {config.name} has no model {model[:200]!r}: {_names(config)}"
            raise Refused(404, "model_not_found", message)
    return body, fields


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _names(config: ProxyConfig) -> str:
    if not config.models:
        return "any model of its endpoint can be named"
    shown = ", ".join(config.models[:MAX_SHOWN_MODELS])
    more = len(config.models) - MAX_SHOWN_MODELS
    return f"it has {shown}" + (f" and {more} more" if more > 0 else "")


async def _unless_gone(work: Awaitable[None], receive: Receive) -> None:
    """Do work; cancel it when the caller hangs up."""
    working = asyncio.ensure_future(work)
    gone = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.wait((working, gone))


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive) -> bytes | None:
    """Read a body, which the body guard limits; None if the caller hangs up meanwhile."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _start(response: aiohttp.ClientResponse) -> dict[str, Any]:
    headers = reply_headers(response)
    return {"type": "http.response.start", "status": response.status, "headers": headers}


def _json(body: object, status: int = 200) -> Response:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return Response(content, status, media_type="application/json")


def _no_route(method: str, path: str) -> Response:
    known = ", ".join((*PATHS, MODELS))
    status, message = 404, f"this proxy passes on {known}"
    if path in {*PATHS, MODELS}:
        status, message = 405, f"{method} is not for {path}"
    code = "method_not_allowed" if status == 405 else "not_found"  # noqa: PLR2004
    return error_response(path, status, error_body(message, "invalid_request_error", code=code))


async def _nothing() -> dict[str, Any]:
    return {"type": "http.disconnect"}
