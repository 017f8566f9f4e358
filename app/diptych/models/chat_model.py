"""A model behind an OpenAI-compatible `/chat/completions` endpoint; fulfils `ports.Model`.

Each run asks it through `runtime.model_caller`.
"""

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
FIRST_WAIT = 10.0  # until a wait for the first byte is reported; each later one takes twice as long
_CLIENT_ERRORS = range(400, 500)

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
ModelObserver: TypeAlias = Callable[[str, str, str], None]
"""Called at the end of each attempt with the model's name, the endpoint's scheme, host and port,
and the outcome: `ok`, `cancelled` or a `ModelCode`."""


class ChatModel:
    """A model, as a `ModelConfig` describes it, with its fallbacks.

    It makes up to `MAX_ATTEMPTS` attempts at each endpoint, all within the total timeout. It
    retries connections that fail or break off before anything was yielded, and the statuses 408,
    409, 425, 429 and 5xx; not a reply that did not begin in time (decision 232). It honours
    Retry-After up to `MAX_RETRY_AFTER`. An endpoint that keeps failing is left alone for a while,
    if there is another. If an endpoint gives no reply, the next one is asked, unless the request
    itself is wrong. The run's remaining time (`ModelRequest.seconds_left`) is shared in the same
    way.
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
        """Take a session from `open_http_session`; `random` returns a number in [0, 1) for jitter.

        Raises `ConfigError` if an endpoint is no HTTP URL.
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
        """Whether the model's own endpoint takes the `tools` field; None until it was sent once."""
        return self._endpoints[0].takes_tools

    @property
    def refused_tool(self) -> str | None:
        """The tool that the model's own endpoint refused; "" if it did not say which."""
        return self._endpoints[0].refused_tool

    @property
    def wants_reasoning(self) -> bool | None:
        """Whether some endpoint wants reasoning back; False if all took native calls without."""
        known = [endpoint.wants_reasoning for endpoint in self._endpoints]
        return True if True in known else None if None in known else False

    async def complete(self, request: ModelRequest) -> Reply:
        """Ask for a whole reply, which is streamed where the endpoint can; see `ports.Model`."""
        reply, endpoint = await self._ask(ModelEndpoint.complete, request)
        self._report_success(endpoint)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask for a streamed reply, one `Delta` for each network read; see `ports.Model`.

        Closing the iterator, or cancelling the task that waits for it, closes the connection.
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
            self._report_failure(endpoint, failure, is_outage=_broke_off(failure))
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
        """Ask one endpoint after the other; raises the first one's failure if all fail.

        Those whose circuit is open are left out, unless no other is left (decision 65). Returns the
        endpoint with its result; its success is not reported yet.
        """
        now = asyncio.get_running_loop().time()
        deadline = now + self._total
        seconds_left = request.seconds_left
        end = deadline if seconds_left is None else min(deadline, now + seconds_left)
        admitted = [endpoint for endpoint in self._endpoints if endpoint.circuit.admit()]
        endpoints = admitted or self._endpoints[:1]
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
                        waits.report("fallback", "gave no reply, the next model is asked", failure)
                else:
                    return result, endpoint
            raise failures[0]
        finally:
            failures.clear()  # their tracebacks lead here: a cycle, with all that the run holds

    async def _with_retries(
        self,
        waits: "_Waits",
        attempt: Callable[[Limits], Awaitable[_T]],
        deadline: float,
        end: float,
        others: int,
    ) -> _T:
        """Ask one endpoint until `end`; a reply that has begun may take until `deadline`."""
        loop, endpoint = asyncio.get_running_loop(), waits.endpoint
        backoff = Backoff(INITIAL_DELAY, MAX_DELAY, random=self._random)
        while True:
            # While others are left, waiting for this one must leave time for them (faults.md M12).
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
                gives_way = bool(others) and _gives_way(endpoint, failure)
                if is_last or gives_way or loop.time() + delay >= end:
                    raise
                waits.report("retry", f"is asked again in {delay:.1f} s", failure)
            except asyncio.CancelledError:
                self._report_end(endpoint, "cancelled")
                raise
            finally:
                waits.end()
            await self._sleep(delay)

    def _retry_delay(self, failure: AttemptFailure, backoff: Backoff) -> float:
        """Return the backoff's next delay, or Retry-After and up to a tenth more."""
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
        if failure.said:  # which callers are not told
            _logger.warning("the model endpoint failed and said: %s", failure.said)
        self.watch.note_failure(endpoint, failure)
        self._report_end(endpoint, failure.code)

    def _report_end(self, endpoint: ModelEndpoint, outcome: str) -> None:
        if self._observe is not None:
            self._observe(endpoint.settings.name, endpoint.origin, outcome)


class _Waits:
    """Reports a request's waits: to the log, and to its run (`ModelRequest.on_wait`)."""

    def __init__(
        self, endpoint: ModelEndpoint, on_wait: Callable[[JSONObject], None] | None
    ) -> None:
        self.endpoint = endpoint
        self._on_wait = on_wait
        self._limit = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """Wait for a first byte from now on, `seconds` at most."""
        self._limit = seconds
        self._set_timer(0, FIRST_WAIT)

    def end(self) -> None:
        """Wait no more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def report(self, kind: str, what: str, failure: AttemptFailure | None = None) -> None:
        """Report a wait; `kind` is a word for programs."""
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
        what = f"has not begun its reply after {passed:g} s; it may be silent for {limit}"
        self.report("first_byte", what)
        self._set_timer(passed, passed)


def _gives_way(endpoint: ModelEndpoint, failure: AttemptFailure) -> bool:
    """Whether another endpoint should be asked rather than this one again."""
    return (
        failure.code == "model_timeout"
        or (failure.retry_after or 0) > MAX_DELAY
        or endpoint.circuit.is_open
    )


def _broke_off(failure: AttemptFailure) -> bool:
    """Whether a stream that had begun broke off because its endpoint is ill."""
    is_refusal = failure.status in _CLIENT_ERRORS
    return failure.is_outage or (failure.code == "model_failed" and not is_refusal)
