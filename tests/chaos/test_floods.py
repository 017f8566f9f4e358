"""Single peers who want to bring down a pod of 512 MiB (issue 12, part 2): none does.

Each of these succeeded before there were bounds. `/health` answers within a second throughout.
"""

import asyncio
import json
import resource
from collections import Counter
from collections.abc import Iterator, Sequence

import aiohttp
import pytest
from aiohttp import web
from support.floods import Peer, get, limited_pods, peers, post, silent_model, watched
from support.model_server import Exchange, model_server
from support.pods import PodProcess, now, pod_processes
from support.redis_server import redis_server
from support.scene import tell
from support.stack import script, until

MEGABYTE = 10**6
SCRIPT = script("{}", "Hello.")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True, scope="module")
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def statuses(found: Sequence[Peer], seconds: float = 20.0) -> Counter[int]:
    """Read the answers of all; each must be read while it is sent, for the end may be a reset."""
    return Counter(await asyncio.gather(*(each.status(seconds) for each in found)))


async def test_connections_that_send_heads_without_end_or_slowly_or_nothing() -> None:
    with limited_pods(DEBUG_MOCK_RESPONSES=SCRIPT) as (pod,):
        pod.start()
        await pod.ready()
        await large_heads(pod)
        await slow_heads(pod)
        await idle_connections(pod)


async def large_heads(pod: PodProcess) -> None:
    lines = b"".join(b"x-%07d: %b\r\n" % (n, b"y" * 20) for n in range(3_500))
    async with watched(pod, "48 MB of headers") as seen, peers(pod, 400) as found:
        begun = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"

        async def flood(each: Peer) -> None:
            await each.send(begun)
            for start in range(0, len(lines), 2**13):
                if not await each.send(lines[start : start + 2**13]):
                    break
                await asyncio.sleep(0.05)

        telling = asyncio.create_task(statuses(found))
        await asyncio.gather(*map(flood, found))
        told = await telling
        tell(f"    {dict(told)}")
        await asyncio.sleep(1.0)
    seen.check(pod)
    assert seen.peak < 200
    assert told[431] == 400


def large_run(size: int = MEGABYTE) -> bytes:
    """Write a request of a text with one character that makes all the others take four bytes."""
    return post("/v1/runs", json.dumps({"input": "\N{GRINNING FACE}" + "x" * (size - 50)}).encode())


async def flood_with_runs(pod: PodProcess, count: int = 430) -> tuple[Counter[int], float]:
    """Ask for so many large runs; gives the statuses, and the seconds of the slowest refusal."""
    request, late = large_run(), 0.0

    async def ask(each: Peer) -> int:
        nonlocal late
        await each.send(request)
        begun = now()
        status = await each.status(60)
        late = max(late, now() - begun)
        return status

    told: Counter[int] = Counter()
    async with peers(pod, count) as found:
        for start in range(0, count, 10):
            told.update(await asyncio.gather(*map(ask, found[start : start + 10])))
    tell(f"    {dict(told)}, answered within {late:.2f} s")
    return told, late


async def test_430_requests_of_1_mb() -> None:
    async with silent_model() as model:
        with limited_pods(MODEL_API_URL=model, MODEL_NAME="m") as (pod,):
            pod.start()
            await pod.ready()
            async with watched(pod, "430 runs of 1 MB") as seen:
                told, _ = await flood_with_runs(pod)
                await asyncio.sleep(3.0)
            seen.check(pod)
            assert told[202] >= 10
            assert told[503] == 430 - told[202]


async def test_a_small_pod_takes_up_what_a_large_one_left_a_few_at_a_time() -> None:
    async with silent_model() as model:
        shared = {"MODEL_API_URL": model, "MODEL_NAME": "m"}
        with (
            redis_server() as redis,
            pod_processes(redis.url, 1, MEMORY_LIMIT="4Gi", **shared) as (large,),
            limited_pods(REDIS_URL=redis.url, AGENT_NAME="durable", **shared) as (small,),
        ):
            await large.ready()
            told, _ = await flood_with_runs(large, 200)
            assert told[202] == 200
            large.kill()
            small.start()
            await small.ready()
            async with watched(small, "200 runs of 1 MB taken up") as seen:
                await until(lambda: len(small.grep("taking over session")) > 1, 40)
                await asyncio.sleep(3.0)
                taken = small.grep("taking over session")
                tell(f"    took over {len(taken)}")
            seen.check(small)
            assert 1 < len(taken) < 200


async def slow_heads(pod: PodProcess) -> None:
    async with watched(pod, "slow heads") as seen, peers(pod, 300) as found:
        begun = now()

        async def dribble(each: Peer) -> float:
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"y" * 40:
                if not await each.send(bytes([byte])) or now() - begun > 20:
                    break
                await asyncio.sleep(0.5)
            return now() - begun

        telling = asyncio.create_task(statuses(found))
        took = await asyncio.gather(*map(dribble, found))
        told = await telling
        tell(f"    {max(took):.1f} s, {dict(told)}")
    seen.check(pod)
    assert max(took) < 15
    assert told[408] == 300


async def idle_connections(pod: PodProcess) -> None:
    async with watched(pod, "5,000 idle connections") as seen, peers(pod, 5_000) as found:
        await asyncio.sleep(2.0)
        tell(f"    {pod.descriptors} descriptors")
        assert pod.descriptors < 2_500
        async with aiohttp.ClientSession() as http:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            async with http.post(f"{pod.url}/v1/chat/completions", json=body) as reply:
                assert reply.status == 200
        assert len(found) == 5_000
    seen.check(pod)
    assert seen.peak < 300


async def at_length(exchange: Exchange) -> web.StreamResponse:
    """Answer with 3 MB, as fast as it goes."""
    if not exchange.is_phase_2:
        return await exchange.say("{}")
    words = (f"{n:07d} " for n in range(3 * MEGABYTE // 8 + 1))  # the same again would be cut
    stream = await exchange.open(*map("".join, zip(*[words] * 1_000, strict=False)))
    await stream.write(
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    )
    await stream.write(b"data: [DONE]\n\n")
    return stream


async def test_peers_who_never_read_a_large_answer() -> None:
    async with (
        model_server(at_length) as model,
        aiohttp.ClientSession() as http,
    ):
        with limited_pods(MODEL_API_URL=model.url, MODEL_NAME="m") as (pod,):
            pod.start()
            await pod.ready()
            for _ in range(5):
                body = {"messages": [{"role": "user", "content": "hi"}]}
                async with http.post(f"{pod.url}/v1/chat/completions", json=body) as reply:
                    assert reply.status == 200
                    run = reply.headers["X-Run-ID"]
                    await reply.read()
            for path in (f"/v1/runs/{run}", "/memory/events?limit=10000"):
                async with watched(pod, f"300 who never read {path[:12]}") as seen:
                    async with peers(pod, 300) as found:
                        await asyncio.gather(*(each.send(get(path)) for each in found))
                        await asyncio.sleep(5.0)
                    await asyncio.sleep(1.0)
                    async with http.get(f"{pod.url}/v1/runs/{run}") as reply:
                        assert len(await reply.read()) > 2.9 * MEGABYTE
                seen.check(pod)
