"""Those who ask pods and read their streams, as a patient client does, and note what they hear.

A caller whose stream breaks goes on after the last id that it saw, at the next pod. What it hears
is kept as `support.history` has it. Not here: what a right answer is.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from time import time
from typing import Any

import aiohttp
from support.history import TERMINAL, Event
from support.pods import PodProcess, now

AGAIN_SECONDS = 0.1  # between two tries of a client
SILENCE_SECONDS = 40.0  # after which a client takes a connection for dead; pings come each 15 s
_CONNECTION = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_SECONDS)
_BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError)


class Gone(Exception):
    """A run is not there (404), or not any more (410)."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event: as it came, and what it means."""

    raw: bytes
    event: str
    id: int | None
    body: Any


class Caller:
    """One client: `pods` are tried in turn from the first one on.

    `frames` has the frame of each id that it heard, as bytes; `text` the answer as told.
    """

    def __init__(
        self,
        name: str,
        http: aiohttp.ClientSession,
        pods: Sequence[PodProcess],
        history: list[Event],
    ) -> None:
        self.name, self.history = name, history
        self.run, self.session = "", ""
        self.last, self.text, self.end, self.phase = 0, "", "", ""
        self.frames: dict[int, bytes] = {}
        self.events: list[str] = []  # the names of all frames, notices included
        self.connections = 0
        self.is_elsewhere = False  # than where its run was accepted
        self.began = self.first_text = self.ended = 0.0
        self._http = http
        self._pods = list(pods)

    # Asking

    async def start(self, text: str, seconds: float = 0.0, **fields: Any) -> str:
        """Have a run accepted, whoever does it; gives its id.

        It is asked for again, with the same key, until that is clear.
        """
        self.began = now()
        headers = {"Idempotency-Key": f"{self.name}-{text}"[:200]}
        while not self.run:
            try:
                async with self._http.post(
                    f"{self._pods[0].url}/v1/runs",
                    json={"input": text, **fields},
                    headers=headers,
                    timeout=_CONNECTION,
                ) as reply:
                    if reply.status == 202:
                        self._accepted(await reply.json(), text, seconds)
                        continue
                    assert reply.status in (500, 502, 503), await reply.text()
            except _BROKEN:
                pass
            await self._try_next()
        return self.run

    async def chat(self, text: str, seconds: float = 0.0) -> None:
        """Ask as OpenAI's clients do; when the stream breaks, follow the run's events."""
        self.began = now()
        body = {"stream": True, "messages": [{"role": "user", "content": text}]}
        headers = {"Idempotency-Key": f"{self.name}-{text}"[:200]}
        while not self.run:
            try:
                async with self._http.post(
                    f"{self._pods[0].url}/v1/chat/completions",
                    json=body,
                    headers=headers,
                    timeout=_CONNECTION,
                ) as reply:
                    if run := reply.headers.get("X-Run-ID"):
                        session = reply.headers["X-Session-ID"]
                        self._accepted({"id": run, "session_id": session}, text, seconds)
                    if reply.status == 200:
                        self.connections += 1
                        await self._read_chat(reply)
            except _BROKEN:
                pass
            if not self.end:
                await self._try_next()
        if not self.end:
            await self.follow()

    async def _read_chat(self, reply: aiohttp.ClientResponse) -> None:
        async for frame in sse(reply.content):
            if frame.body == "[DONE]":
                self._ended("completed")
                return
            for choice in frame.body.get("choices", ()):
                piece = choice["delta"].get("content") or ""
                self.first_text = self.first_text or (now() if piece else 0.0)
                self.text += piece
            self.last = frame.id or self.last

    # Following

    async def follow(self, run: str = "") -> "Caller":
        """Follow the run to its end, over all connections that this takes. Raises `Gone`."""
        self.run = run or self.run
        while not self.end:
            try:
                async with self._http.get(
                    f"{self._pods[0].url}/v1/runs/{self.run}/events",
                    headers={"Last-Event-ID": str(self.last)} if self.last else {},
                    timeout=_CONNECTION,
                ) as reply:
                    if reply.status in (404, 410):
                        raise Gone(reply.status)
                    if reply.status == 200:
                        self.connections += 1
                        async for frame in sse(reply.content):
                            self._hear(frame)
            except _BROKEN:
                pass
            if not self.end:
                await self._try_next()
        return self

    def _hear(self, frame: Frame) -> None:
        self.events.append(frame.event)
        if frame.event == "reset":
            self.last = frame.body["last_seq"]
            self._note("reset", last_seq=self.last)
        if frame.id is None:
            return
        self.last = frame.id
        self.frames[frame.id] = frame.raw
        self._follow_text(frame)
        self._note(
            "reader", seq=frame.id, event_type=frame.event, content=frame.body.get("content")
        )
        if frame.event in TERMINAL:
            self._ended(frame.event)

    def _follow_text(self, frame: Frame) -> None:
        if frame.event == "text":
            self.text += frame.body["content"]
            self.first_text = self.first_text or now()
        elif frame.event == "answer_reset":
            self.text = ""
        self.phase = frame.event

    def _accepted(self, body: Mapping[str, Any], text: str, seconds: float) -> None:
        if not self.run:
            self.run, self.session = body["id"], body["session_id"]
            event = {"kind": "accepted", "session": self.session, "text": text}
            self.history.append(self._event({**event, "seconds": seconds}))

    def _ended(self, how: str) -> None:
        self.end, self.ended = how, now()
        if self.frames and min(self.frames) == 1:  # it has heard all of it
            self._note("reader_ended")

    def _note(self, kind: str, **about: Any) -> None:
        self.history.append(self._event({"kind": kind, **about}))

    def _event(self, about: dict[str, Any]) -> Event:
        return {"t": now(), "actor": self.name, "run": self.run, **about}

    def turn_to_next(self) -> None:
        """Read at the next pod, which does not own the run."""
        self.is_elsewhere = True
        self._pods.append(self._pods.pop(0))

    async def _try_next(self) -> None:
        self._pods.append(self._pods.pop(0))
        await asyncio.sleep(AGAIN_SECONDS)


async def sse(stream: aiohttp.StreamReader) -> AsyncIterator[Frame]:
    """Read frames; what is not whole when the connection breaks is not told."""
    held = b""
    async for piece in stream.iter_any():
        *whole, held = (held + piece).split(b"\n\n")
        for raw in whole:
            if (frame := _frame(raw)) is not None:
                yield frame


def _frame(raw: bytes) -> Frame | None:
    named: dict[str, str] = {}
    for line in raw.decode().split("\n"):
        name, _, value = line.partition(": ")
        if name:
            named[name] = value
    if "data" not in named:
        return None
    text = named["data"]
    number = named.get("id")
    return Frame(
        raw,
        named.get("event", "message"),
        int(number) if number else None,
        text if text == "[DONE]" else json.loads(text),
    )


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client for any number of streams."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        yield http


async def read_log(http: aiohttp.ClientSession, pod: PodProcess, run: str) -> list[Frame]:
    """Read what is on record of a run that has ended."""
    async with http.get(f"{pod.url}/v1/runs/{run}/events") as reply:
        assert reply.status == 200, await reply.text()
        return [frame async for frame in sse(reply.content)]


def records(log: Sequence[Frame]) -> list[Event]:
    """Put a run's record in the form of a history."""
    offset = time() - now()
    return [
        {
            "t": datetime.fromisoformat(frame.body["timestamp"]).timestamp() - offset,
            "actor": "log",
            "kind": "record",
            "run": frame.body["run_id"],
            "session": frame.body["session_id"],
            "seq": frame.id,
            "event_type": frame.event,
            "content": frame.body["content"],
        }
        for frame in log
    ]
