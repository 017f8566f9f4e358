"""A model behind OpenAI-compatible `/chat/completions` endpoints; implements `ports.Model`."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar

import aiohttp

from diptych.core.messages import JSONObject
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.connection import Limits
from diptych.models.endpoint import ModelEndpoint
from diptych.models.failures import AttemptFailure
from diptych.models.health import ModelWatch
from diptych.net.backoff import Backoff
from diptych.ports import Delta, Reply

MAX_ATTEMPTS = 3  # of each endpoint
INITIAL_DELAY = 0.25  # seconds, as all times here
MAX_DELAY = 8.0
MAX_RETRY_AFTER = 30.0
FIRST_WAIT = 10.0  # before a wait for the first byte is reported; doubles after each report
_CLIENT_ERRORS = range(400, 500)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
ModelObserver: TypeAlias = Callable[[str, str, str], None]
"""Called after each attempt with the model's name, the endpoint's origin, and the outcome: `ok`,
`cancelled` or a `ModelCode`."""


class ChatModel:
    """The model of a `ModelConfig`, with its fallbacks.

    Makes up to `MAX_ATTEMPTS` attempts per endpoint, all within the total timeout and the run's
    remaining time. Retries connections that fail or break before anything was yielded, and the
    statuses 408, 409, 425, 429 and 5xx, but no first-byte timeout (decision 232). Honours
    Retry-After up to `MAX_RETRY_AFTER`. When an endpoint fails, the next one is tried, unless the
    request itself is wrong; an endpoint that keeps failing is skipped for a while, if there is
    another.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        settings: ModelConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
        observe: ModelObserver | None = None,
    ) -> None:
        """Use a session from `open_http_session`; `random` returns jitter in [0, 1).

        Raises `ConfigError` if an endpoint is not an HTTP URL.
        """
        self._endpoints = [
            ModelEndpoint(session, model) for model in (settings, *settings.fallbacks)
        ]
        self._total = settings.timeouts.total
        self._sleep = sleep
        self._random = random
        self._observe = observe
        self.watch = ModelWatch(self._endpoints)

    @property
    def takes_tools(self) -> bool | None:
        """Whether the primary endpoint supports the `tools` field; None until it was sent once."""
        return self._endpoints[0].takes_tools

    @property
    def refused_tool(self) -> str | None:
        """The tool that the primary endpoint refused; "" if it did not name it."""
        return self._endpoints[0].refused_tool

    @property
    def wants_reasoning(self) -> bool | None:
        """Whether any endpoint requires reasoning back; None while some are unknown."""
        known = [endpoint.wants_reasoning for endpoint in self._endpoints]
        return True if True in known else None if None in known else False

    async def complete(self, request: ModelRequest) -> Reply:
        """Return a whole reply, streamed internally where possible; see `ports.Model`."""
        reply, endpoint = await self._ask(ModelEndpoint.complete, request)
        self._report_success(endpoint)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Stream a reply, one `Delta` per network read; see `ports.Model`.

        Closing the iterator, or cancelling the task that awaits it, closes the connection.
        """
        (reader, delta), endpoint = await self._ask(ModelEndpoint.stream, request)
        is_reported = False
        try:
            while delta.finish_reason is None:
                yield delta
                delta = await reader.next()
            is_reported = True
            self._report_success(endpoint)
            yield delta
        except AttemptFailure as failure:
            is_reported = True
            self._report_failure(endpoint, failure, is_outage=_is_stream_outage(failure))
            raise
        finally:
            reader.close()
            if not is_reported:
                self._report_end(endpoint, "cancelled")

    async def _ask(
        self,
        ask: Callable[[ModelEndpoint, ModelRequest, Limits], Awaitable[_T]],
        request: ModelRequest,
    ) -> tuple[_T, ModelEndpoint]:
        """Try the endpoints in order; raises the first one's failure if all fail.

        Skips endpoints with an open circuit, unless no other is left (decision 65). Returns the
        result and its endpoint, whose success is not reported yet.
        """
        now = asyncio.get_running_loop().time()
        deadline = now + self._total
        seconds_left = request.seconds_left
        end = deadline if seconds_left is None else min(deadline, now + seconds_left)
        allowed = [endpoint for endpoint in self._endpoints if endpoint.circuit.allow()]
        endpoints = allowed or self._endpoints[:1]
        failures: list[AttemptFailure] = []
        try:
            for position, endpoint in enumerate(endpoints):
                others = len(endpoints) - position - 1
                waits = _Waits(endpoint, request.on_wait)
                attempt = partial(ask, endpoint, request)
                try:
                    result = await self._with_retries(waits, attempt, deadline, end, others)
                except AttemptFailure as failure:
                    failures.append(failure)
                    if not failure.may_fall_back:
                        raise
                    if others:
                        waits.report("fallback", "failed, trying the next model", failure)
                else:
                    return result, endpoint
            raise failures[0]
        finally:
            failures.clear()  # tracebacks refer to this frame: a cycle that would keep the run

    async def _with_retries(
        self,
        waits: "_Waits",
        attempt: Callable[[Limits], Awaitable[_T]],
        deadline: float,
        end: float,
        others: int,
    ) -> _T:
        """Try one endpoint until `end`; a reply that has started may take until `deadline`."""
        loop, endpoint = asyncio.get_running_loop(), waits.endpoint
        backoff = Backoff(INITIAL_DELAY, MAX_DELAY, random=self._random)
        while True:
            # Waiting for this endpoint must leave time for the remaining ones (faults.md M12).
            share = (end - loop.time()) / (others + 1)
            first_byte = endpoint.settings.timeouts.first_byte
            seconds = min(first_byte, share) if others else first_byte
            waits.begin(seconds)
            try:
                return await attempt(Limits(seconds, deadline, self._total, waits.end))
            except AttemptFailure as failure:
                self._report_failure(endpoint, failure, is_outage=failure.is_outage)
                delay = self._retry_delay(failure, backoff)
                is_last = not failure.may_retry or backoff.retries == MAX_ATTEMPTS
                falls_back = bool(others) and _should_fall_back(endpoint, failure)
                if is_last or falls_back or loop.time() + delay >= end:
                    raise
                waits.report("retry", f"failed, retrying in {delay:.1f} s", failure)
            except asyncio.CancelledError:
                self._report_end(endpoint, "cancelled")
                raise
            finally:
                waits.end()
            await self._sleep(delay)

    def _retry_delay(self, failure: AttemptFailure, backoff: Backoff) -> float:
        """Return the backoff's next delay, or Retry-After plus up to 10 % jitter."""
        delay = backoff.next_delay()
        if failure.retry_after is not None:
            return min(failure.retry_after, MAX_RETRY_AFTER) * (1 + self._random() / 10)
        return delay

    def _report_success(self, endpoint: ModelEndpoint) -> None:
        endpoint.circuit.report_success()
        self.watch.note_success(endpoint)
        self._report_end(endpoint, "ok")

    def _report_failure(
        self, endpoint: ModelEndpoint, failure: AttemptFailure, *, is_outage: bool
    ) -> None:
        if is_outage:
            endpoint.circuit.report_failure()
        elif failure.report is not None:
            endpoint.circuit.report_success()
        failure.name_proxy(endpoint.settings.proxy)
        if failure.said:  # logged only: callers do not see it
            _logger.warning("the model endpoint failed with: %s", failure.said)
        self.watch.note_failure(endpoint, failure)
        self._report_end(endpoint, failure.code)

    def _report_end(self, endpoint: ModelEndpoint, outcome: str) -> None:
        if self._observe is not None:
            self._observe(endpoint.settings.name, endpoint.origin, outcome)


class _Waits:
    """Reports retries, fallbacks and long waits, to the log and to `ModelRequest.on_wait`."""

    def __init__(
        self, endpoint: ModelEndpoint, on_wait: Callable[[JSONObject], None] | None
    ) -> None:
        self.endpoint = endpoint
        self._on_wait = on_wait
        self._limit = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Start to time a wait for the first byte; `seconds` is its limit."""
        self._limit = seconds
        self._set_timer(0, FIRST_WAIT)

    def end(self) -> None:
        """Stop timing."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def report(self, kind: str, what: str, failure: AttemptFailure | None = None) -> None:
        """Report a wait; `kind` is machine-readable."""
        name, origin = self.endpoint.settings.name, self.endpoint.origin
        message = f"{name} at {origin} {what}" + (f": {failure.message}" if failure else "")
        _logger.warning("%s", message)
        if self._on_wait:
            about = {"kind": kind, "model": name, "endpoint": origin, "message": message}
            self._on_wait(dict(about))

    def _set_timer(self, passed: float, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._on_timer, passed + seconds)

    def _on_timer(self, passed: float) -> None:
        limit = f"{self._limit:.3g} s (spec.model.timeouts.firstByte)"
        what = f"has not started its reply after {passed:g} s; the limit is {limit}"
        self.report("first_byte", what)
        self._set_timer(passed, passed)


def _should_fall_back(endpoint: ModelEndpoint, failure: AttemptFailure) -> bool:
    """Whether to fall back to another endpoint instead of retrying this one."""
    return (
        failure.code == "model_timeout"
        or (failure.retry_after or 0) > MAX_DELAY
        or endpoint.circuit.is_open
    )


def _is_stream_outage(failure: AttemptFailure) -> bool:
    """Whether a started stream failed because its endpoint is unhealthy."""
    is_refusal = failure.status in _CLIENT_ERRORS
    return failure.is_outage or (failure.code == "model_failed" and not is_refusal)
