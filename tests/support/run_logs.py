"""What a pod tells of runs: the frames of a stream, a run's whole record, the list of runs."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from time import time
from typing import Any

import aiohttp
from support.history import Event
from support.pods import PodProcess, now

PAGE = 1_000  # runs that a pod lists at once


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event: as it came, and what it means."""

    raw: bytes
    event: str
    id: int | None
    body: Any


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


async def read_log(http: aiohttp.ClientSession, pod: PodProcess, run: str) -> list[Frame]:
    """Read what is on record of a run that has ended."""
    async with http.get(f"{pod.url}/v1/runs/{run}/events") as reply:
        assert reply.status == 200, await reply.text()
        return [frame async for frame in sse(reply.content) if frame.id is not None]


async def runs_since(http: aiohttp.ClientSession, pod: PodProcess, since: float) -> list[str]:
    """Give the ids of the runs that were begun since then (by the wall clock), oldest first."""
    found: list[str] = []
    query: dict[str, Any] = {"limit": PAGE}
    while True:
        async with http.get(f"{pod.url}/v1/runs", params=query) as reply:
            assert reply.status == 200, await reply.text()
            listed = await reply.json()
        begun = [
            run["id"]
            for run in listed["data"]
            if datetime.fromisoformat(run["created_at"]).timestamp() >= since
        ]
        found = begun + found
        if len(begun) < PAGE or not listed["has_more"]:
            return found
        query["before"] = begun[0]


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
