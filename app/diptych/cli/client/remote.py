"""A client of an agent over HTTP: its runs and its recorded events."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
import orjson

from diptych.cli.client.agent_client import (
    Availability,
    Choice,
    NoticeHandler,
    StartedRun,
    ignore_notice,
)
from diptych.cli.client.bearer import BearerToken, token_of_environment
from diptych.cli.client.failures import (
    RemoteError,
    TransientError,
    connection_error,
    status_error,
)
from diptych.cli.client.run_cursor import RunCursor, read_record
from diptych.cli.notices import RECONNECTING, RETRYING_START
from diptych.core.catalog import Unavailable
from diptych.core.codec import Record
from diptych.core.errors import ConfigError, DiptychError
from diptych.core.text import well_formed
from diptych.net.backoff import Backoff
from diptych.net.proxies import proxy_for
from diptych.net.sse import MEBIBYTE, SseParser, SseTooLong
from diptych.ports import Item, Notice

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 30.0
SILENCE_SECONDS = 60.0  # a stream of events has a ping every 15 s
MAX_EVENT_BYTES = 8 * MEBIBYTE
FIRST_DELAY, MAX_DELAY = 0.2, 5.0  # seconds between tries
GIVE_UP_SECONDS = 120.0  # without a new record; a takeover by another replica takes less
STABLE_SECONDS = 20.0  # after which a connection that still delivers has recovered
_MAY_HAVE_STARTED = "; it may have taken the question all the same"


class Tunnel(Protocol):
    """What a request must pass to reach the agent, and what may be down for a while."""

    async def wait_open(self) -> None:
        """Return once a request gets through. Raises a `DiptychError` if that takes too long."""
        ...


class RemoteAgent:
    """An agent at a URL; fulfils `AgentClient`. All methods raise `RemoteError`.

    `name` is what a person calls the agent, `attach_flags` the flags with which `diptych attach`
    reaches it, `tunnel` what its URL leads through, if anything.
    """

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.name = url
        self.url = url
        self.attach_flags = f"--at {url}"
        self.tunnel: Tunnel | None = None
        self.new_backoff: Callable[[], Backoff] = _backoff
        self._http = http
        self._has_responded = False

    async def availability(self) -> Availability:
        body = await self._json("GET", "/ready", accepts=(200, 503))
        missing = [Unavailable(m["kind"], m["name"], m["reason"]) for m in body.get("missing", ())]
        notes = body.get("notes", ())
        return Availability(missing, any("DEBUG_MOCK_RESPONSES" in note for note in notes))

    async def start(
        self, question: str, session_id: str | None, on_notice: NoticeHandler = ignore_notice
    ) -> StartedRun:
        """Start a run, with retries under one idempotency key, so that only one is started.

        The first retry is announced by the notice `RETRYING_START`. An agent that has never
        responded is not retried.
        """
        given = {"input": question} | ({"session_id": session_id} if session_id else {})
        body = {name: well_formed(text) for name, text in given.items()}  # typed in any encoding
        # Each try has a connection of its own: a new one may lead to another pod.
        headers = {"Idempotency-Key": secrets.token_hex(16), "Connection": "close"}
        backoff, may_have_started = self.new_backoff(), False
        while True:
            try:
                run = await self._json("POST", "/v1/runs", json=body, headers=headers)
                return StartedRun(run["id"], run["session_id"])
            except TransientError as error:
                may_have_started |= error.may_have_started
                if not (self._has_responded or may_have_started):
                    raise
                if backoff.is_exhausted:
                    doubt = _MAY_HAVE_STARTED if may_have_started else ""
                    raise RemoteError(f"{error}{doubt}") from error
                if backoff.retries == 0:
                    on_notice(Notice(RETRYING_START, {"message": str(error)}))
                await asyncio.sleep(backoff.next_delay())

    async def subscribe(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give a run's records with a `seq` above `after`, then its live items, to its end.

        A stream that breaks is resumed after its last event; the notice `RECONNECTING` announces
        it. A run that the agent does not know, or no longer, is a `RemoteError` at once.
        """
        cursor, backoff = RunCursor(after), self.new_backoff()
        while not cursor.is_at_end:
            stable_at = time.monotonic() + STABLE_SECONDS
            try:
                async with aclosing(self._stream(run_id, cursor)) as batches:
                    async for batch in batches:
                        has_records = any(isinstance(item, Record) for item in batch)
                        if has_records or time.monotonic() > stable_at:
                            backoff.reset()
                        yield batch
            except TransientError as error:
                if not self._has_responded:
                    raise  # no agent was ever there to come back
                if backoff.is_exhausted:
                    raise RemoteError(f"{error}; {self.attach_hint(run_id)}") from error
                if backoff.retries == 0 and not cursor.was_handed_over:
                    yield [Notice(RECONNECTING, {"message": str(error)})]
                await asyncio.sleep(backoff.next_delay())

    async def _stream(self, run_id: str, cursor: RunCursor) -> AsyncGenerator[Sequence[Item]]:
        """Give the items of one connection. Raises `TransientError` if it ends before the run."""
        path = f"{_run_path(run_id)}/events"
        headers = {"Last-Event-ID": cursor.last_id} if cursor.last_id else {}
        stream = SseParser(cursor.last_id, MAX_EVENT_BYTES)
        try:
            await self._wait_for_tunnel()
            async with self._http.stream(
                "GET", path, headers=headers, timeout=_timeout(SILENCE_SECONDS)
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise status_error(response.status_code, await response.aread())
                self._has_responded = True
                async for chunk in response.aiter_bytes():
                    if items := cursor.advance(stream.feed(chunk)):
                        yield items
                    if cursor.is_at_end:
                        return
        except (httpx.HTTPError, httpx.InvalidURL, SseTooLong) as error:
            raise connection_error(self.name, error) from error
        raise TransientError(f"{self.name} closed the connection before the run had ended")

    async def tree(self, run_id: str) -> Any:  # noqa: ANN401 - the agent's JSON
        """Give a run and the runs below it, as `/v1/runs/{id}/tree` does."""
        return await self._json("GET", f"{_run_path(run_id)}/tree")

    async def approvals(self) -> list[dict[str, Any]]:
        """Give the calls that wait for a decision, as `/v1/approvals` lists them."""
        body = await self._json("GET", "/v1/approvals")
        return list(body["data"])

    async def send_decision(self, run_id: str, call_id: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - the agent's JSON
        """Decide on a call that waits; gives the approval."""
        path = f"{_run_path(run_id)}/approvals/{_segment(call_id)}"
        return await self._json("POST", path, json=body)

    async def decide(self, run_id: str, call_id: str, decision: Choice, reason: str) -> None:
        await self.send_decision(run_id, call_id, {"decision": decision, "reason": reason})

    async def send(self, run_id: str, message: str, *, is_follow_up: bool = False) -> None:
        path = f"{_run_path(run_id)}/{'follow-up' if is_follow_up else 'steer'}"
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        await self._json("POST", path, json={"message": well_formed(message)}, headers=headers)

    async def queue(self, run_id: str) -> dict[str, list[dict[str, str]]]:
        """Give the messages that wait in a run; none if it has ended."""
        run = await self._json("GET", _run_path(run_id))
        return dict(run.get("queue", {}))

    async def clear_queue(self, run_id: str) -> dict[str, list[dict[str, str]]]:
        """Drop the messages that wait in a run; gives them."""
        body = await self._json("DELETE", f"{_run_path(run_id)}/queue")
        return dict(body["queue"])

    async def cancel(self, run_id: str) -> None:
        await self.send_cancellation(run_id)

    async def send_cancellation(self, run_id: str) -> str:
        """Cancel a run; gives its status then."""
        try:
            path = f"{_run_path(run_id)}/cancel"
            return str((await self._json("POST", path, json={}))["status"])
        except TransientError as error:
            raise RemoteError(f"{error}; {self.attach_hint(run_id)}") from error

    async def resume(self, run_id: str, max_steps: int | None = None) -> StartedRun:
        """Take up a run that failed or was aborted; asked again, it gives the same new run."""
        body = {} if max_steps is None else {"max_steps": max_steps}
        run = await self._json("POST", f"{_run_path(run_id)}/resume", json=body)
        return StartedRun(run["id"], run["session_id"])

    async def recorded_events(
        self, session_id: str | None = None, limit: int | None = None
    ) -> list[Record]:
        """Give the recorded events of a session, or of all; only the last `limit` of them."""
        found: list[Record] = []
        before: str | None = None
        while True:
            left = None if limit is None else limit - len(found)
            wanted = {"session_id": session_id, "limit": left, "before": before}
            query = {name: str(value) for name, value in wanted.items() if value is not None}
            body = await self._json("GET", "/memory/events", params=query)
            found = [*map(read_record, body["events"]), *found]
            before = body.get("next_before")  # agents of earlier versions give no pages
            if before is None or limit is None or len(found) >= limit:
                return found

    def attach_hint(self, run_id: str) -> str:
        """Tell a person how to follow a run again."""
        return f"the run may still go on; see it with `diptych attach {run_id} {self.attach_flags}`"

    async def _json(
        self,
        method: str,
        path: str,
        *,
        accepts: Sequence[int] = (200, 202),
        **request: Any,  # noqa: ANN401 - as httpx takes it
    ) -> Any:  # noqa: ANN401 - the agent's JSON
        try:
            await self._wait_for_tunnel()
            response = await self._http.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise connection_error(self.name, error) from error
        self._has_responded = True
        if response.status_code not in accepts:
            raise status_error(response.status_code, response.content)
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise RemoteError(f"{self.url} is there, but is no Diptych agent") from error

    async def _wait_for_tunnel(self) -> None:
        try:
            if self.tunnel:
                await self.tunnel.wait_open()
        except DiptychError as error:
            raise TransientError(str(error), may_have_started=False) from error


@asynccontextmanager
async def agent_at(url: str, auth: BearerToken | None = None) -> AsyncIterator[RemoteAgent]:
    """Give a client of the agent at a URL, of which `http://` may be left out.

    Without `auth`, `DIPTYCH_TOKEN` says who asks, if it is set.

    Raises `ConfigError` if it is no HTTP URL.
    """
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        raise ConfigError(f"{url}: must be an agent's URL, such as http://127.0.0.1:8000")
    async with httpx.AsyncClient(
        base_url=url,
        timeout=_timeout(REPLY_SECONDS),
        trust_env=False,
        verify=httpx.create_ssl_context(),
        proxy=proxy_for(url),
        auth=auth or token_of_environment(),
    ) as http:
        yield RemoteAgent(http, url)


def _run_path(run_id: str) -> str:
    return f"/v1/runs/{_segment(run_id)}"


def _segment(name: str) -> str:
    """Write an id as one part of a path. Raises `RemoteError` if it is empty."""
    if not name:
        raise RemoteError("the id is empty; `diptych events` shows those of runs")
    return quote(name, safe="").replace(".", "%2E")  # `/v1/runs/..` is another resource


def _backoff() -> Backoff:
    return Backoff(FIRST_DELAY, MAX_DELAY, budget=GIVE_UP_SECONDS)


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)
