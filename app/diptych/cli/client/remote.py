"""An agent that runs elsewhere, asked over HTTP: its runs and its record.

Not here: what is shown of them (`show`, `rows`), what goes wrong, in words (`failures`), and when
it is tried again (`patience`).
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
import orjson

from diptych.cli.client.failures import Interrupted, RemoteError, refused, unreachable
from diptych.cli.follow import Begun, Standing, Tell, untold
from diptych.cli.output.timeline import ASKING_AGAIN, RECONNECTING
from diptych.cli.patience import Patience
from diptych.errors import ConfigError, DiptychError
from diptych.loop.catalog import Unavailable
from diptych.loop.codec import TERMINAL, Record
from diptych.net.sse import MEBIBYTE, SseEvent, SseParser, SseTooLong
from diptych.ports import Item, Notice

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 30.0
SILENCE_SECONDS = 60.0  # a stream of events has a ping every 15 s
LONGEST_EVENT = 8 * MEBIBYTE
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_DOUBT = "; it may have taken the question all the same"
HANDED_OVER = "handed_over"  # the last notice of a pod that is leaving


class Line(Protocol):
    """A way to an agent that may be away for a while."""

    async def open(self) -> None:
        """Wait until a request gets through. Raises a `DiptychError` if none does for long."""
        ...


class RemoteAgent:
    """An agent at a URL; fulfils `Askable`. All methods raise `RemoteError`, or what `line` does.

    `name` is what a person calls it, `line` what its URL leads through, `place` the words by which
    `diptych attach` finds it again.
    """

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.name = url
        self.url = url
        self.place = f"--at {url}"
        self.line: Line | None = None
        self.patience = Patience
        self._http = http
        self._has_answered = False

    async def standing(self) -> Standing:
        said = await self._json("GET", "/ready", accepts=(200, 503))
        missing = [Unavailable(m["kind"], m["name"], m["reason"]) for m in said.get("missing", ())]
        return Standing(missing, any("DEBUG_MOCK_RESPONSES" in n for n in said.get("notes", ())))

    async def begin(self, question: str, session_id: str | None, tell: Tell = untold) -> Begun:
        """Ask, and again when that breaks: under the same key, so that no run is begun twice.

        The first break is told, by `ASKING_AGAIN`. Where nobody has ever been, one does not wait.
        """
        body = {"input": question} | ({"session_id": session_id} if session_id else {})
        # Each try has a connection of its own: another pod may be at the end of a new one.
        headers = {"Idempotency-Key": secrets.token_hex(16), "Connection": "close"}
        patience, may_have_begun = self.patience(), False
        while True:
            try:
                run = await self._json("POST", "/v1/runs", json=body, headers=headers)
                return Begun(run["id"], run["session_id"])
            except Interrupted as error:
                may_have_begun |= error.had_effect
                if not (self._has_answered or may_have_begun):
                    raise
                if (delay := patience.delay()) is None:
                    raise RemoteError(f"{error}{_DOUBT if may_have_begun else ''}") from error
                if patience.is_first_try:
                    tell(Notice(ASKING_AGAIN, {"message": str(error)}))
                await asyncio.sleep(delay)

    async def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give a run's records after `after`, then what happens; pick up a stream that breaks.

        Each break is told by one notice, `RECONNECTING`. A run that the agent does not know, or not
        any more, is a `RemoteError` at once.
        """
        cursor, patience = _Cursor(after), self.patience()
        while not cursor.is_at_end:
            try:
                async with aclosing(self._stream(run_id, cursor)) as batches:
                    async for batch in batches:
                        patience.heard(is_news=any(isinstance(i, Record) for i in batch))
                        yield batch
            except Interrupted as error:
                if not self._has_answered:
                    raise  # there is nobody to come back
                if (delay := patience.delay()) is None:
                    raise RemoteError(f"{error}; {self.how_to_go_on(run_id)}") from error
                if patience.is_first_try and not cursor.was_told:
                    yield [Notice(RECONNECTING, {"message": str(error)})]
                await asyncio.sleep(delay)

    async def _stream(self, run_id: str, cursor: "_Cursor") -> AsyncGenerator[Sequence[Item]]:
        """Give what one connection brings. Raises `Interrupted` if it ends before the run."""
        path = f"/v1/runs/{quote(run_id, safe='')}/events"
        headers = {"Last-Event-ID": cursor.last_id} if cursor.last_id else {}
        stream = SseParser(cursor.last_id, LONGEST_EVENT)
        try:
            await self._open_line()
            async with self._http.stream(
                "GET", path, headers=headers, timeout=_timeout(SILENCE_SECONDS)
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise refused(response.status_code, await response.aread())
                self._has_answered = True
                async for chunk in response.aiter_bytes():
                    if items := cursor.take(stream.feed(chunk)):
                        yield items
                    if cursor.is_at_end:
                        return
        except (httpx.HTTPError, httpx.InvalidURL, SseTooLong) as error:
            raise unreachable(self.name, error) from error
        raise Interrupted(f"{self.name} closed the connection before the run had ended")

    async def cancel(self, run_id: str) -> None:
        try:
            await self._json("POST", f"/v1/runs/{run_id}/cancel", json={})
        except Interrupted as error:
            raise RemoteError(f"{error}; {self.how_to_go_on(run_id)}") from error

    async def memory(self, session_id: str | None = None, limit: int | None = None) -> list[Record]:
        """Give what is on record, of a session or of all; the last `limit` events."""
        asked = {"session_id": session_id, "limit": limit}
        query = {name: str(value) for name, value in asked.items() if value is not None}
        said = await self._json("GET", "/memory/events", params=query)
        return [_record(event) for event in said["events"]]

    async def _json(
        self,
        method: str,
        path: str,
        *,
        accepts: Sequence[int] = (200, 202),
        **request: Any,  # noqa: ANN401 - as httpx takes it
    ) -> Any:  # noqa: ANN401 - what an agent says
        try:
            await self._open_line()
            response = await self._http.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise unreachable(self.name, error) from error
        self._has_answered = True
        if response.status_code not in accepts:
            raise refused(response.status_code, response.content)
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise RemoteError(f"{self.url} is there, but is no Diptych agent") from error

    async def _open_line(self) -> None:
        try:
            if self.line:
                await self.line.open()
        except DiptychError as error:
            raise Interrupted(str(error), had_effect=False) from error

    def how_to_go_on(self, run_id: str) -> str:
        """Say how a person sees a run again that is not followed any more."""
        return f"the run may still go on; see it with `diptych attach {run_id} {self.place}`"


class _Cursor:
    """How far a run has been read, over all connections."""

    def __init__(self, after: int) -> None:
        self.last_id = str(after) if after else ""
        self.is_at_end = False
        self.was_told = False  # that the connection is going to end
        self._seq = after

    def take(self, events: Sequence[SseEvent]) -> Sequence[Item]:
        """Give what is new in the events; what was read before is left out."""
        items = []
        for event, payload, last_id in events:
            self.last_id = last_id
            item = read_item(event, payload)
            if isinstance(item, Record):
                if item.seq <= self._seq:
                    continue
                self._seq = item.seq
                self.is_at_end = item.event_type in TERMINAL
            elif item.type == "reset":
                self._start_over(item)
            self.was_told = isinstance(item, Notice) and item.type == HANDED_OVER
            items.append(item)
        return items

    def _start_over(self, reset: Notice) -> None:
        """Take note that the store has lost the run's tail: numbers go on from before it."""
        last_seq = reset.fields.get("last_seq")
        if isinstance(last_seq, int):
            self._seq = last_seq
            self.last_id = str(last_seq)


@asynccontextmanager
async def agent_at(url: str) -> AsyncIterator[RemoteAgent]:
    """Give the agent at a URL; `http://` may be left out. Raises `ConfigError` if it is none."""
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise ConfigError(f"{url}: must be an agent's URL, such as http://127.0.0.1:8000")
    is_near = parts.hostname in _LOOPBACK  # and so behind no proxy
    async with httpx.AsyncClient(
        base_url=url, timeout=_timeout(REPLY_SECONDS), trust_env=not is_near
    ) as http:
        yield RemoteAgent(http, url)


def read_item(event: str, payload: bytes) -> Item:
    """Read one event of `/v1/runs/{id}/events`. Raises `RemoteError` if it is none."""
    try:
        shown = orjson.loads(payload)
        if "event_type" in shown:
            return _record(shown)
        return Notice(shown.pop("type", event), shown)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError("what answers there sends no events of a run") from error


def _record(shown: Any) -> Record:  # noqa: ANN401 - as it came off the wire
    return Record(
        shown["run_id"],
        shown["session_id"],
        shown["seq"],
        shown["event_type"],
        datetime.fromisoformat(shown["timestamp"]).timestamp(),
        shown["content"],
        shown["metadata"],
    )


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)
