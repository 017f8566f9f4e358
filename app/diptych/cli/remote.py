"""An agent that runs elsewhere, asked over HTTP: its runs and its record.

Not here: what is shown of them (`show`, `rows`).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from diptych.adapters.chat.sse_reader import SseReader, SseTooLong
from diptych.cli.asking import Begun, Standing
from diptych.errors import ConfigError, DiptychError
from diptych.live import Item
from diptych.offers import Unavailable
from diptych.ports import Notice
from diptych.record import TERMINAL, Record

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 30.0
SILENCE_SECONDS = 60.0  # a stream of events has a ping every 15 s
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_MEBIBYTE = 1024 * 1024


class RemoteError(DiptychError):
    """An agent gives no answer, or says no; the message is for a person."""


class RemoteAgent:
    """An agent at a URL; fulfils `Askable`. All methods raise `RemoteError`."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.name = url
        self.url = url
        self._http = http

    async def standing(self) -> Standing:
        said = await self._json("GET", "/ready", accepts=(200, 503))
        missing = [Unavailable(m["kind"], m["name"], m["reason"]) for m in said.get("missing", ())]
        return Standing(missing, any("DEBUG_MOCK_RESPONSES" in n for n in said.get("notes", ())))

    async def begin(self, question: str, session_id: str | None) -> Begun:
        body = {"input": question} | ({"session_id": session_id} if session_id else {})
        run = await self._json("POST", "/v1/runs", json=body)
        return Begun(run["id"], run["session_id"])

    async def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        path, reader = f"/v1/runs/{run_id}/events", SseReader(limit=8 * _MEBIBYTE)
        query = {"starting_after": str(after)} if after else {}
        try:
            async with self._http.stream(
                "GET", path, params=query, timeout=_timeout(SILENCE_SECONDS)
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise _refused(response.status_code, await response.aread())
                async for chunk in response.aiter_bytes():
                    if items := [read_item(event) for event in reader.feed(chunk)]:
                        yield items
                        if isinstance(items[-1], Record) and items[-1].event_type in TERMINAL:
                            return
        except (httpx.HTTPError, httpx.InvalidURL, SseTooLong) as error:
            raise _unreachable(self.url, error) from error
        raise RemoteError(f"{self.url} closed the connection before the run had ended")

    async def cancel(self, run_id: str) -> None:
        await self._json("POST", f"/v1/runs/{run_id}/cancel", json={})

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
            response = await self._http.request(method, path, **request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreachable(self.url, error) from error
        if response.status_code not in accepts:
            raise _refused(response.status_code, response.content)
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise RemoteError(f"{self.url} is there, but is no Diptych agent") from error


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


def read_item(event: bytes) -> Item:
    """Read the data of one event of `/v1/runs/{id}/events`."""
    shown = orjson.loads(event)
    if "event_type" in shown:
        return _record(shown)
    return Notice(shown.pop("type"), shown)


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


def _unreachable(url: str, error: Exception) -> RemoteError:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return RemoteError(
                f"nothing listens at {url}; start an agent with `diptych serve agent.yaml`, "
                "or give the URL of one that runs"
            )
        case httpx.TimeoutException():
            return RemoteError(f"{url} gave no answer in time")
        case SseTooLong():
            return RemoteError(f"{url} sent an event that is too long to show")
        case _:
            return RemoteError(f"the connection to {url} broke; the run may still go on there")


def _refused(status: int, body: bytes) -> RemoteError:
    """Repeat what the agent said was wrong, in either form that it speaks."""
    try:
        said = orjson.loads(body)
        message = said["error"]["message"] if "error" in said else said["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = "what answers there is no Diptych agent"
    return RemoteError(f"HTTP {status}: {message}")
