"""A client of an agent over HTTP: its runs and its recorded events."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import httpx
import orjson

from diptych.cli.output.timeline import RECONNECTING, RETRYING_START
from diptych.core.catalog import Unavailable
from diptych.core.codec import Record, is_terminal
from diptych.core.errors import ConfigError, DiptychError, NotResumable, RequestError
from diptych.core.events import WaitKind
from diptych.core.text import well_formed
from diptych.net.backoff import Backoff
from diptych.net.proxies import proxy_for
from diptych.net.sse import MEBIBYTE, SseParser, SseTooLong
from diptych.ports import Item, Notice

TOKEN_VARIABLE = "DIPTYCH_TOKEN"  # noqa: S105 - its name
TOKEN_FILE_VARIABLE = "DIPTYCH_TOKEN_FILE"  # noqa: S105 - its name
CONNECT_SECONDS = 5.0
REPLY_SECONDS = 30.0
SILENCE_SECONDS = 60.0  # a stream of events has a ping every 15 s
MAX_EVENT_BYTES = 8 * MEBIBYTE
FIRST_DELAY, MAX_DELAY = 0.2, 5.0  # seconds between tries
GIVE_UP_SECONDS = 120.0  # without a new record; a takeover by another replica takes less
STABLE_SECONDS = 20.0  # after which a connection has recovered, even without a new record
_TRANSIENT = {429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The ids of a run that the agent has confirmed."""

    run_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Availability:
    """Which tool servers and agents are unavailable now, and whether a script is the model."""

    unavailable: Sequence[Unavailable]
    is_scripted: bool


class RemoteError(DiptychError):
    """The agent did not answer, or refused the request."""


class TransientError(RemoteError):
    """A `RemoteError` that a retry may overcome."""


class BearerToken(httpx.Auth):
    """Sends a token with each request; `request` makes one, and may block.

    A token that the agent refuses is replaced once.
    """

    def __init__(self, request: Callable[[], str]) -> None:
        self._request = request
        self._token = ""

    async def renew(self) -> None:
        """Get a new token. Raises what `request` raises."""
        self._token = await asyncio.to_thread(self._request)

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        if not self._token:
            await self.renew()
        sent = self._token
        request.headers["Authorization"] = f"Bearer {sent}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED:
            await self.renew()
            if self._token != sent:
                request.headers["Authorization"] = f"Bearer {self._token}"
                yield request


def token_of_environment() -> BearerToken | None:
    """Return the token of `DIPTYCH_TOKEN`, or of the file at `DIPTYCH_TOKEN_FILE`, if one is set.

    The file is read again if its token is refused.
    """
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        return BearerToken(lambda: token)
    if file := os.environ.get(TOKEN_FILE_VARIABLE):
        return BearerToken(lambda: _read_token(Path(file)))
    return None


def _read_token(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{TOKEN_FILE_VARIABLE}: {file} cannot be read: {error}") from error


class RemoteAgent:
    """An agent at a URL. All methods raise `RemoteError`, and `RequestError` for a wrong request.

    `name` is what a person calls the agent. `model` says which model it asks and where, and
    `server_urls` has the URLs of its tool servers by name, as far as they are known here.
    `attach_flags` are the flags by which `diptych attach` reaches it; `was_there` says that it has
    answered before.
    """

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.name = url
        self.model = "the model"
        self.server_urls: Mapping[str, str] = {}
        self.url = url
        self.attach_flags = f"--at {url}"
        self.was_there = False
        self.new_backoff: Callable[[], Backoff] = lambda: Backoff(
            FIRST_DELAY, MAX_DELAY, budget=GIVE_UP_SECONDS
        )
        self._http = http

    async def availability(self) -> Availability:
        body = await self._json("GET", "/ready", accepts=(200, 503))
        missing = [Unavailable(m["kind"], m["name"], m["reason"]) for m in body.get("missing", ())]
        notes = body.get("notes", ())
        return Availability(missing, any("DEBUG_MOCK_RESPONSES" in note for note in notes))

    async def tools(self) -> list[tuple[str, str]]:
        """Return the name and description of all tools and agents that it can call now."""
        body = await self._json("GET", "/v1/agent")
        return [(each["name"], each["description"]) for each in (*body["tools"], *body["agents"])]

    async def start(
        self,
        question: str,
        session_id: str | None,
        on_notice: Callable[[Notice], None],
        key: str | None = None,
    ) -> StartedRun:
        """Start a run, in a new session if `session_id` is None.

        Retries have one idempotency key, `key` or a new one, so that only one run starts; the
        notice `RETRYING_START` announces the first.
        """
        given = {"input": question} | ({"session_id": session_id} if session_id else {})
        body = {name: well_formed(text) for name, text in given.items()}  # typed in any encoding
        # Each try has a connection of its own: a new one may lead to another pod.
        headers = {"Idempotency-Key": key or secrets.token_hex(16), "Connection": "close"}
        backoff = self.new_backoff()
        while True:
            try:
                run = await self._json("POST", "/v1/runs", json=body, headers=headers)
                return StartedRun(run["id"], run["session_id"])
            except TransientError as error:
                if backoff.is_exhausted:
                    raise RemoteError(f"{error}; the run may have started all the same") from error
                if backoff.retries == 0:
                    on_notice(Notice(RETRYING_START, {"message": str(error)}))
                await asyncio.sleep(backoff.next_delay())

    async def subscribe(self, run_id: str) -> AsyncGenerator[Sequence[Item]]:
        """Yield a run's records from its beginning, then its live items, to its end.

        A stream that breaks is resumed after its last event; the notice `RECONNECTING` announces
        it. A run that the agent does not know, or no longer, is a `RemoteError` at once.
        """
        after, backoff, is_handed_over = 0, self.new_backoff(), False
        while True:
            stable_at = time.monotonic() + STABLE_SECONDS
            try:
                async with aclosing(self._stream(run_id, after)) as batches:
                    async for batch in batches:
                        records = [item for item in batch if isinstance(item, Record)]
                        if records or time.monotonic() > stable_at:
                            backoff.reset()
                        after = _position(batch, after)
                        last = batch[-1]
                        is_handed_over = isinstance(last, Notice) and last.type == "handed_over"
                        yield batch
                        if any(map(is_terminal, records)):
                            return
            except TransientError as error:
                if backoff.is_exhausted:
                    raise RemoteError(f"{error}; {self.attach_hint(run_id)}") from error
                if backoff.retries == 0 and not is_handed_over:
                    yield [Notice(RECONNECTING, {"message": str(error)})]
                await asyncio.sleep(backoff.next_delay())

    async def _stream(self, run_id: str, after: int) -> AsyncGenerator[Sequence[Item]]:
        """Yield the items of one connection. Raises `TransientError` when it ends."""
        headers = {"Last-Event-ID": str(after)} if after else {}
        parser = SseParser(limit=MAX_EVENT_BYTES)
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
        path = f"{_run_path(run_id)}/events"
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
                self.was_there = True
                if response.status_code != httpx.codes.OK:
                    _raise_status(self.url, response.status_code, await response.aread())
                async for chunk in response.aiter_bytes():
                    if events := parser.feed(chunk):
                        yield [_read_item(kind, data) for kind, data, _ in events]
        except (httpx.HTTPError, httpx.InvalidURL, SseTooLong) as error:
            raise self._connection_error(error) from error
        raise TransientError(f"{self.name} closed the connection before the run had ended")

    async def tree(self, run_id: str) -> Any:  # noqa: ANN401 - the agent's JSON
        """Return a run and the runs below it, as `/v1/runs/{id}/tree` does."""
        return await self._json("GET", f"{_run_path(run_id)}/tree")

    async def approvals(self) -> list[dict[str, Any]]:
        """Return the calls that wait for a decision, as `/v1/approvals` lists them."""
        return list((await self._json("GET", "/v1/approvals"))["data"])

    async def inputs(self) -> list[dict[str, Any]]:
        """Return the questions that wait for an answer, as `/v1/inputs` lists them."""
        return list((await self._json("GET", "/v1/inputs"))["data"])

    async def inputs_of(self, run_id: str) -> list[dict[str, Any]]:
        """Return all questions of a run, in their order."""
        return list((await self._json("GET", _run_path(run_id))).get("inputs", ()))

    async def answer(
        self, run_id: str, call_id: str, kind: WaitKind, body: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401 - the agent's JSON
        """Decide on a call that waits, or answer its question; returns the approval or question."""
        path = f"{_run_path(run_id)}/{kind}s/{_segment(call_id)}"
        return await self._json("POST", path, json=body)

    async def logins(self) -> list[dict[str, Any]]:
        """Return the tool servers at which people sign in, as `/v1/logins` lists them."""
        return list((await self._json("GET", "/v1/logins"))["data"])

    async def begin_login(self, tool: str, redirect_uri: str) -> dict[str, Any]:
        """Begin to sign in at a tool server; `url` is for the browser, None if signed in."""
        body = {"redirect_uri": redirect_uri}
        return dict(await self._json("POST", f"/v1/logins/{_segment(tool)}", json=body))

    async def finish_login(self, tool: str, callback: Mapping[str, str]) -> None:
        """Hand on what the browser brought back."""
        await self._json("POST", f"/v1/logins/{_segment(tool)}/code", json=dict(callback))

    async def forget_login(self, tool: str) -> None:
        """Delete the token of a tool server."""
        await self._json("DELETE", f"/v1/logins/{_segment(tool)}")

    async def send(self, run_id: str, message: str, *, is_follow_up: bool = False) -> None:
        """Send a message to a run that goes on: to steer it, or for its next turn."""
        path = f"{_run_path(run_id)}/{'follow-up' if is_follow_up else 'steer'}"
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        await self._json("POST", path, json={"message": well_formed(message)}, headers=headers)

    async def queue(self, run_id: str) -> dict[str, list[dict[str, str]]]:
        """Return the messages that wait in a run; none if it has ended."""
        run = await self._json("GET", _run_path(run_id))
        return dict(run.get("queue", {}))

    async def clear_queue(self, run_id: str) -> dict[str, list[dict[str, str]]]:
        """Drop the messages that wait in a run, and return them."""
        body = await self._json("DELETE", f"{_run_path(run_id)}/queue")
        return dict(body["queue"])

    async def cancel(self, run_id: str) -> str:
        """Cancel a run; returns its status then."""
        try:
            run = await self._json("POST", f"{_run_path(run_id)}/cancel", json={})
        except TransientError as error:
            raise RemoteError(f"{error}; {self.attach_hint(run_id)}") from error
        return str(run["status"])

    async def resume(self, run_id: str, max_steps: int | None = None) -> StartedRun:
        """Take up a run that failed or was aborted; asked again, it is the same new run."""
        body = {} if max_steps is None else {"max_steps": max_steps}
        run = await self._json("POST", f"{_run_path(run_id)}/resume", json=body)
        return StartedRun(run["id"], run["session_id"])

    async def recorded_events(
        self, session_id: str | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the recorded events of a session, or of all; only the last `limit` of them."""
        found: list[Record] = []
        before: str | None = None
        while True:
            left = None if limit is None else limit - len(found)
            wanted = {"session_id": session_id, "limit": left, "before": before}
            query = {name: str(value) for name, value in wanted.items() if value is not None}
            body = await self._json("GET", "/memory/events", params=query)
            found = [*map(_read_record, body["events"]), *found]
            before = body.get("next_before")
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
            response = await self._http.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._connection_error(error) from error
        self.was_there = True
        if response.status_code not in accepts:
            _raise_status(self.url, response.status_code, response.content)
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise RemoteError(f"the server at {self.url} is not a Diptych agent") from error

    def _connection_error(self, error: Exception) -> RemoteError:
        """Return the error for a request without a response."""
        match error:
            case httpx.ConnectError() | httpx.ConnectTimeout() if not self.was_there:
                return RemoteError(
                    f"nothing listens at {self.name}; start an agent with `diptych serve "
                    "agent.yaml`, or give the URL of one that runs"
                )
            case httpx.TimeoutException():
                return TransientError(f"{self.name} gave no answer in time")
            case httpx.InvalidURL():
                return RemoteError(f"{self.name} cannot be asked for that")
            case SseTooLong():
                return RemoteError(f"{self.name} sent an event that is too long to show")
            case _:
                return TransientError(f"the connection to {self.name} broke")


@asynccontextmanager
async def agent_at(url: str, auth: httpx.Auth | None = None) -> AsyncIterator[RemoteAgent]:
    """Yield a client of the agent at a URL, of which `http://` may be left out.

    Without `auth`, the token of `DIPTYCH_TOKEN` is sent, if it is set. Raises `ConfigError` if it
    is no HTTP URL.
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
        timeout=httpx.Timeout(REPLY_SECONDS, connect=CONNECT_SECONDS),
        trust_env=False,
        verify=httpx.create_ssl_context(),
        proxy=proxy_for(url),
        auth=auth or token_of_environment(),
    ) as http:
        yield RemoteAgent(http, url)


def _raise_status(url: str, status: int, body: bytes) -> NoReturn:
    """Raise the error for a response that is no success; it repeats what the agent said."""
    code = ""
    try:
        content = orjson.loads(body)
        message = content["error"]["message"] if "error" in content else content["detail"]
        code = str(content.get("error", content).get("code") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"the server at {url} is not a Diptych agent"
    if status == httpx.codes.UNAUTHORIZED:
        message += f"; {TOKEN_VARIABLE} holds the token or key that is sent"
    message = f"HTTP {status}: {message}"
    if status == httpx.codes.BAD_REQUEST or code == NotResumable.code:
        raise RequestError(message)
    raise (TransientError if status in _TRANSIENT else RemoteError)(message)


def _position(items: Sequence[Item], after: int) -> int:
    """Return the `seq` after which to go on: an earlier one if the store lost the last records."""
    for item in items:
        if isinstance(item, Record):
            after = item.seq
        elif item.type == "reset" and isinstance(last_seq := item.fields.get("last_seq"), int):
            after = last_seq
    return after


def _read_item(kind: str, data: bytes) -> Item:
    try:
        view = orjson.loads(data)
        if "event_type" in view:
            return _read_record(view)
        return Notice(view.pop("type", kind), view)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError("this address does not send the events of a run") from error


def _read_record(view: Any) -> Record:  # noqa: ANN401 - the agent's JSON
    """Read an event as `/v1/runs/{id}/events` and `/memory/events` show it."""
    return Record(
        view["run_id"],
        view["session_id"],
        view["seq"],
        view["event_type"],
        datetime.fromisoformat(view["timestamp"]).timestamp(),
        view["content"],
        view["metadata"],
    )


def _run_path(run_id: str) -> str:
    return f"/v1/runs/{_segment(run_id)}"


def _segment(name: str) -> str:
    """Write an id as one part of a path. Raises `RemoteError` if it is empty."""
    if not name:
        raise RemoteError("the id is empty; `diptych events` shows those of runs")
    return quote(name, safe="").replace(".", "%2E")  # `/v1/runs/..` is another resource
