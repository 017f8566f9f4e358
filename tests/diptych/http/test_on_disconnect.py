"""Readers that hang up: what becomes of the run, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support.face import HI, Face, Speaker, face
from support.stack import listening, until

CHAT, RESPONSE = ("/v1/chat/completions", HI), ("/v1/responses", {"input": "hi"})
CANCEL = {"on_disconnect": "cancel"}
REASON = "the client disconnected"


@dataclass
class Room:
    """An agent that has said a word and says no more until it is told to."""

    helper: Face
    url: str
    model: Speaker

    async def start(self, **body: Any) -> str:
        response = await self.helper.http.post("/v1/runs", json={"input": "hi", **body})
        await self.model.has_stopped.wait()
        return str(response.json()["id"])

    async def end(self, run_id: str) -> Any:
        """Wait for the run's end without following it, and give its record."""
        runs = self.helper.house.runs
        await until(lambda: runs._scheduler.find(run_id) is None)
        return (await runs.records(run_id))[-1]

    def readers(self, run_id: str) -> int:
        live = self.helper.house.runs._scheduler.find(run_id)
        return len(live.log._buffers) if live else 0

    @asynccontextmanager
    async def reading(self, run_id: str) -> AsyncIterator[None]:
        """Follow a run's events over a connection that breaks at the end."""
        async with httpx.AsyncClient(base_url=self.url) as http:
            async with http.stream("GET", f"/v1/runs/{run_id}/events") as response:
                lines = response.aiter_lines()  # to drop it would break the connection
                while await anext(lines) != "event: text":
                    pass
                yield


@asynccontextmanager
async def room() -> AsyncIterator[Room]:
    model = Speaker("one ", ..., "two")
    async with face(model=model) as helper, listening(helper.app) as url:
        yield Room(helper, url, model)


@pytest.mark.parametrize("options", [{}, {"on_disconnect": "continue"}])
async def test_a_run_goes_on_otherwise(options: dict[str, str]) -> None:
    async with room() as helper:
        run_id = await helper.start(**options)
        async with helper.reading(run_id):
            pass
        await until(lambda: helper.readers(run_id) == 0)
        helper.model.go.set()
        assert (await helper.end(run_id)).event_type == "completed"


async def test_only_the_last_reader_ends_a_run_by_hanging_up() -> None:
    async with room() as helper:
        run_id = await helper.start(**CANCEL)
        async with helper.reading(run_id):
            async with helper.reading(run_id):
                await until(lambda: helper.readers(run_id) == 2)
            await until(lambda: helper.readers(run_id) == 1)
            await asyncio.sleep(0.05)
            assert (await helper.helper.house.runs.entry(run_id)).status == "running"
        async with asyncio.timeout(1):
            assert (await helper.end(run_id)).event_type == "aborted"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [CHAT, RESPONSE])
async def test_a_chat_that_hangs_up_alone_ends_its_run_if_it_asked_for_that(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    async with room() as helper:
        async with httpx.AsyncClient(base_url=helper.url) as http:
            body = {**body, **CANCEL, "stream": stream}
            asking = asyncio.create_task(http.post(path, json=body))
            await helper.model.has_stopped.wait()
            (entry,) = await helper.helper.house.runs.entries()
            await until(lambda: helper.readers(entry.run_id) == 1)
            asking.cancel()
            await asyncio.wait([asking])
        async with asyncio.timeout(1):
            end = await helper.end(entry.run_id)
        assert (end.event_type, end.content) == ("aborted", REASON)


async def test_a_stream_that_its_process_ends_is_no_hanging_up() -> None:
    async with face(model=Speaker("one ", ...)) as helper:
        response = await helper.http.post("/v1/runs", json={"input": "hi", **CANCEL})
        run_id = response.json()["id"]
        reading = asyncio.create_task(helper.http.get(f"/v1/runs/{run_id}/events"))
        await helper.house.model.has_stopped.wait()
        await helper.house.runs.close()
        await reading
        end = (await helper.house.runs.records(run_id))[-1]
        assert end.content == "the agent is shutting down"
