"""`kill -9` of the one process of an agent in SQLite, and the next one's takeover.

Nothing is lost, and nothing happens twice: the ids of the events go on, a call that may have been
made is not made again, and a reader gets each piece of the answer once.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.orders import Charges
from support.pods import SERVE, PodProcess
from support.stack import call, script

SECONDS = 60.0  # that a test waits, though the machine has other work
TEXT = " ".join(f"w{n}" for n in range(30))
ANSWER = {"content": TEXT, "chunk_ms": 60}
CALLS = call("charge", key="one")

pytestmark = pytest.mark.timeout(300)


class Laptop:
    """The process of one agent, whose runs are in a folder, and a client of it."""

    def __init__(self, folder: Path, tools: Charges, replies: str) -> None:
        self.tools = tools
        self.data = folder / "data"
        manifest = folder / "agent.yaml"
        manifest.write_text(
            "apiVersion: diptych.dev/v1alpha1\n"
            "kind: Agent\n"
            "metadata: {name: helper}\n"
            f"spec: {{tools: [{{name: box, url: {tools.url!r}}}]}}\n"
        )
        environ = {"LOG_FORMAT": "json", "DEBUG_MOCK_RESPONSES": replies}
        command = (*SERVE, str(manifest), "--data", str(self.data))
        self.process, self.second = (
            PodProcess(name, folder, environ, command) for name in ("helper", "second")
        )
        self.http = httpx.AsyncClient(base_url=self.process.url, timeout=SECONDS)

    async def start(self) -> None:
        self.process.start()
        await self.process.ready()

    async def kill(self) -> None:
        """End the process as a crash does, and start the next one."""
        self.process.kill()
        await self.start()

    async def ask(self) -> str:
        reply = await self.http.post("/v1/runs", json={"input": "hi", "session_id": "talk"})
        assert reply.status_code in {200, 202}, reply.text
        return str(reply.json()["id"])

    async def events(self, run_id: str) -> AsyncGenerator[tuple[int, str, Any]]:
        """Yield id, type and data of a run's recorded events, live and to its end."""
        path, seq, kind = f"/v1/runs/{run_id}/events", 0, ""
        async with self.http.stream("GET", path) as reply:
            async for line in reply.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    seq = int(value)
                elif name == "event":
                    kind = value
                elif name == "data" and seq:
                    yield seq, kind, json.loads(value)
                    seq = 0

    async def wait_for(self, run_id: str, kind: str) -> list[tuple[int, str, Any]]:
        """Return a run's events up to the first of a kind."""
        seen = []
        async with asyncio.timeout(SECONDS):
            async with aclosing(self.events(run_id)) as events:
                async for event in events:
                    seen.append(event)
                    if event[1] == kind:
                        return seen
        raise AssertionError(f"no {kind} in {seen}")

    def charged(self) -> list[str]:
        return [event["key"] for event in self.tools.history()]


@pytest.fixture
async def laptop(tmp_path: Path, tools: Charges) -> AsyncIterator[Any]:
    made: list[Laptop] = []

    def make(*replies: Any) -> Laptop:
        made.append(Laptop(tmp_path, tools, script(*replies)))
        return made[0]

    try:
        yield make
    except BaseException as error:
        error.add_note(made[0].process.tail())
        raise
    finally:
        made[0].process.end()
        made[0].second.end()
        await made[0].http.aclose()


async def finished(at: Laptop, run_id: str) -> list[tuple[str, Any]]:
    """Return a run's events once it has completed: each id once, the answer whole."""
    events = await at.wait_for(run_id, "completed")
    assert [seq for seq, _, _ in events] == list(range(1, len(events) + 1))
    kinds = [kind for _, kind, _ in events]
    assert kinds.count("owner_changed") == 1
    assert "answer_reset" not in kinds
    assert "".join(str(d["content"]) for _, kind, d in events if kind == "text") == TEXT
    reply = await at.http.get("/memory/events", params={"session_id": "talk"})
    answers = [e["content"] for e in reply.json()["events"] if e["event_type"] == "agent_response"]
    assert answers == [TEXT]
    return [(kind, data) for _, kind, data in events]


async def test_killed_while_a_tool_works_the_call_is_not_made_again(laptop: Any) -> None:
    at = laptop(CALLS, "{}", ANSWER)
    await at.start()
    run_id = await at.ask()
    async with asyncio.timeout(SECONDS):
        while not at.charged():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)
    await at.kill()
    events = await finished(at, run_id)
    [error] = [data for kind, data in events if kind == "tool_error"]
    assert "unknown" in json.dumps(error)
    assert at.charged() == ["charge one"]


async def test_killed_while_it_answers_the_rest_follows(laptop: Any) -> None:
    at = laptop("{}", ANSWER)
    await at.start()
    run_id = await at.ask()
    before = await at.wait_for(run_id, "text")
    await at.kill()
    after = await finished(at, run_id)
    assert [(kind, data) for _, kind, data in before] == after[: len(before)], "it was told"


async def test_a_folder_that_another_process_holds_is_refused(laptop: Any) -> None:
    at = laptop("{}", ANSWER)
    await at.start()
    at.second.start()
    assert await at.second.exited(SECONDS) == 2
    assert "is in use by another process" in at.second.tail()
    assert await at.process.status("/ready") == 200
