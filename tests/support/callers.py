"""Those who ask pods and read their streams, as a patient client does, and note what they hear.

A caller whose stream breaks goes on after the last id that it saw, at the next pod. What it hears
is kept as `support.history` has it.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from support.history import TERMINAL, Event
from support.pods import PodProcess, now
from support.run_logs import Frame, sse

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
class Request:
    """What a caller sends, as often as it must, under a key that makes it one request."""

    path: str
    body: Mapping[str, Any]
    text: str  # its question
    key: str

    @property
    def digest(self) -> str:
        """Name the body, and where it goes: the same key stands for no other."""
        whole = json.dumps([self.path, self.body], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


def run_request(text: str, key: str, **fields: Any) -> Request:
    return Request("/v1/runs", {"input": text, **fields}, text, key)


def chat_request(text: str, key: str) -> Request:
    body = {"stream": True, "messages": [{"role": "user", "content": text}]}
    return Request("/v1/chat/completions", body, text, key)


class Caller:
    """One client: `pods` are tried in turn from the first one on.

    `frames` has the frame of each id that it heard, as bytes; `text` the answer as told. It is
    refused if the `key` that it asks with stands for another request.
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
        self._pieces: list[tuple[int, str | None]] = []  # of the answer; None where it began anew
        self.events: list[str] = []  # the names of all frames, notices included
        self.connections = 0
        self.is_refused = False
        self.is_elsewhere = False  # than where its run was accepted
        self.began = self.first_text = self.ended = 0.0
        self._http = http
        self._pods = list(pods)
        self.key = ""

    # Asking

    async def start(self, text: str, seconds: float = 0.0, **fields: Any) -> str:
        """Have a run accepted, whoever does it; gives its id."""
        await self.insist(run_request(text, self._own_key(text), **fields), seconds)
        return self.run

    async def chat(self, text: str, seconds: float = 0.0) -> None:
        """Ask as OpenAI's clients do; when the stream breaks, follow the run's events."""
        await self.insist(chat_request(text, self._own_key(text)), seconds)
        await self.hear_out()

    async def insist(self, request: Request, seconds: float = 0.0) -> None:
        """Ask, again and again with the same key, until it is clear what came of it.

        What comes of it is a run, whose stream is heard if the reply is one, or a refusal.
        """
        self.began, self.key = now(), request.key
        while not (self.run or self.is_refused):
            with suppress(*_BROKEN):
                async with self._post(request) as reply:
                    await self._hear_reply(reply, request, seconds)
            has_broken = self.connections > 0 and not self.end
            if has_broken or not (self.run or self.is_refused):
                await self._try_next()

    async def lose_reply(self, request: Request) -> None:
        """Ask, and hear nothing of what came of it."""
        with suppress(*_BROKEN):
            async with self._post(request):
                pass

    async def hear_out(self) -> None:
        """Follow the run, if it was not told to its end by the reply to the request."""
        if self.run and not self.end:
            await self.subscribe()

    def _own_key(self, text: str) -> str:
        return f"{self.name}-{text}"[:200]

    def _post(self, request: Request) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._http.post(
            self._pods[0].url + request.path,
            json=request.body,
            headers={"Idempotency-Key": request.key},
            timeout=_CONNECTION,
        )

    async def _hear_reply(
        self, reply: aiohttp.ClientResponse, request: Request, seconds: float
    ) -> None:
        if reply.status == 422:
            assert (await reply.json())["error"]["code"] == "idempotency_mismatch"
            self.is_refused = True
            self._asked_once(request)
        elif reply.status == 202:
            body = await reply.json()
            self._accepted(request, body["id"], body["session_id"], seconds)
        elif run := reply.headers.get("X-Run-ID"):
            self._accepted(request, run, reply.headers["X-Session-ID"], seconds)
            if reply.status == 200:
                self.connections += 1
                await self._read_chat(reply)
        else:
            assert reply.status in (500, 502, 503), await reply.text()

    async def _read_chat(self, reply: aiohttp.ClientResponse) -> None:
        async for frame in sse(reply.content):
            if frame.body == "[DONE]":
                self._ended("completed")
                return
            for choice in frame.body.get("choices", ()):
                if piece := choice["delta"].get("content"):
                    self._hear_piece(frame.id or self.last, piece)
            self.last = frame.id or self.last

    # Following

    async def subscribe(self, run: str = "") -> "Caller":
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
            self._go_back(frame.body["last_seq"])
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
            self._hear_piece(self.last, frame.body["content"])
        elif frame.event == "answer_reset":
            self._hear_piece(self.last, None)
        self.phase = frame.event

    def _hear_piece(self, seq: int, piece: str | None) -> None:
        self._pieces.append((seq, piece))
        self.text = "" if piece is None else self.text + piece
        self.first_text = self.first_text or (now() if piece else 0.0)

    def _go_back(self, last_seq: int) -> None:
        """Forget what came after: the store has lost it."""
        pieces = [(seq, piece) for seq, piece in self._pieces if seq <= last_seq]
        self.frames = {seq: raw for seq, raw in self.frames.items() if seq <= last_seq}
        self._pieces, self.text, self.last = [], "", last_seq
        for seq, piece in pieces:
            self._hear_piece(seq, piece)
        self._note("reset", last_seq=last_seq)

    def _accepted(self, request: Request, run: str, session: str, seconds: float) -> None:
        self.run, self.session = run, session
        self._asked_once(request)
        self._note("accepted", session=session, text=request.text, seconds=seconds)

    def _asked_once(self, request: Request) -> None:
        self._note("asked_once", key=request.key, body=request.digest, text=request.text)

    def _ended(self, how: str) -> None:
        self.end, self.ended = how, now()
        if self.frames and min(self.frames) == 1:  # it has heard all of it
            self._note("reader_ended")
        if self.key:
            self._note("told_once", key=self.key, answer=self.text)

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


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client for any number of streams."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        yield http
