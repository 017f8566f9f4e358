"""SIGTERM: streams are not cut, and what takes too long is handed over (faults.md P4, P5)."""

import asyncio

from support.callers import Caller
from support.pods import PodProcess, now
from support.scene import Scene, scene
from support.stack import script

STREAMS = 30
WORDS = [f"w{n}" for n in range(40)]
TEXT = " ".join(WORDS)
GRACE = 20.0


def saying(chunk_ms: int) -> str:
    return script("{}", {"content": TEXT, "chunk_ms": chunk_ms})


async def ask(caller: Caller, text: str) -> None:
    """Ask as a chat, or as a run that is followed, in turn."""
    if len(caller.name) % 2:
        await caller.chat(text, 20.0)
    else:
        await caller.start(text, 20.0)
        await caller.subscribe()


async def all_telling(scene: Scene, count: int) -> None:
    """Wait until all callers hear text."""
    async with asyncio.timeout(30):
        while sum(bool(caller.text) for caller in scene.callers) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def not_ready_after(pod: PodProcess) -> float:
    """Give the seconds until `/ready` says no."""
    begun = now()
    async with asyncio.timeout(10):
        while await pod.status("/ready") == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return now() - begun


async def test_thirty_streams_end_well_when_their_pod_is_told_to_end() -> None:
    async with scene(DEBUG_MOCK_RESPONSES=saying(160)) as on:  # some 6 s
        leaving = on.pods[0]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for n in range(STREAMS):
                caller = on.caller("x" * (n + 1))
                group.create_task(ask(caller, f"question {n}"))
            await all_telling(on, STREAMS)
            leaving.terminate()
            begun = now()
            assert await not_ready_after(leaving) < 1.0
            assert await leaving.status("/health") == 200
            async with on.http.post(f"{leaving.url}/v1/runs", json={"input": "new"}) as reply:
                assert reply.status == 503
                assert "Retry-After" in reply.headers
        assert await leaving.exited(GRACE) == 0
        assert now() - begun < GRACE
        assert {caller.connections for caller in on.callers} == {1}
        assert {caller.text for caller in on.callers} == {TEXT}
        logs = await on.reckon()
        assert len(logs) == STREAMS
        assert not any(frame.event == "owner_changed" for log in logs.values() for frame in log)


async def test_a_run_that_outlasts_the_grace_is_handed_over_and_told_to_its_end() -> None:
    settings = {"DEBUG_MOCK_RESPONSES": saying(100), "SHUTDOWN_GRACE_SECONDS": "2"}
    async with scene(**settings) as on:
        leaving = on.pods[0]
        chat, follower, afar = (on.caller(name) for name in ("a", "bb", "cc"))
        async with asyncio.timeout(40), asyncio.TaskGroup() as group:
            group.create_task(ask(chat, "chat"))
            group.create_task(ask(follower, "run"))
            await all_telling(on, 2)
            on.trouble("SIGTERM", 10.0)
            leaving.terminate()
            begun = now()
            assert await leaving.exited(2.0 + 5.0) == 0
            took = now() - begun
            group.create_task(afar.subscribe(follower.run))
        assert took >= 1.5, "runs had no time to end"
        assert [caller.text for caller in (chat, follower, afar)] == [TEXT] * 3
        assert follower.events.count("handed_over") == 1
        assert follower.events[follower.events.index("handed_over") + 1] == "owner_changed"
        assert follower.connections >= 2
        await on.reckon()
