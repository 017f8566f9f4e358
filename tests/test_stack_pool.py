"""Pools: many agents in one process, which come, change and go under load."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from support.callers import Caller
from support.model_server import Exchange, model_server
from support.pods import PodProcess, all_ready
from support.pool import (
    OPERATOR,
    POOL_AUDIENCE,
    WEB,
    PoolProcess,
    again,
    ask,
    audience,
    bearer,
    changed,
    document,
    pool,
    pools,
    write_redis,
)
from support.redis_server import free_port, redis_server

ONE, TWO = bearer(WEB, audience("one")), bearer(WEB, audience("two"))
BY_POOL, STRANGER = bearer(WEB, POOL_AUDIENCE), bearer("other/web", POOL_AUDIENCE)
CHATS = "/v1/chat/completions"


@dataclass(frozen=True)
class Place:
    """Where an agent is asked."""

    url: str


@dataclass(frozen=True)
class AsWeb:
    """A client that asks an agent with a token for it."""

    http: aiohttp.ClientSession
    agent: str

    def get(self, url: str, headers: dict[str, str], **options: Any) -> Any:
        return self.http.get(url, headers={**headers, **self._token}, **options)

    def post(self, url: str, headers: dict[str, str], **options: Any) -> Any:
        return self.http.post(url, headers={**headers, **self._token}, **options)

    @property
    def _token(self) -> dict[str, str]:
        return bearer(WEB, audience(self.agent))


def at(content: dict[str, Any]) -> str:
    """Give the URL of an agent's own port."""
    return f"http://127.0.0.1:{content['port']}"


async def slowly(exchange: Exchange) -> Any:
    """Say three words, half a second each."""
    stream = await exchange.open()
    for word in ("one ", "two ", "three"):
        await asyncio.sleep(0.5)
        delta = {"choices": [{"index": 0, "delta": {"content": word}}]}
        await stream.write(b"data: %b\n\n" % json.dumps(delta).encode())
    await stream.write(
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    )
    await stream.write(b"data: [DONE]\n\n")
    return stream


async def until(pool: PoolProcess, name: str, state: str | None) -> dict[str, Any] | None:
    """Wait until an agent's entry has a state; None is that it has no entry."""
    async with asyncio.timeout(20):
        while True:
            entry = await pool.entry(name)
            if (entry and entry["state"]) == state:
                return entry
            await asyncio.sleep(0.05)


async def test_agents_come_change_and_go_by_files_and_by_http(tmp_path: Path) -> None:
    one, two = document("one"), document("two")
    metrics = free_port()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
        pool(tmp_path, one, METRICS_PORT=str(metrics)) as served,
    ):
        assert await ask(http, at(one), headers=ONE) == (200, "I am one")
        assert (await served.put(two))["state"] == "ready"
        assert await ask(http, at(two), headers=TWO) == (200, "I am two")
        async with http.get(f"http://127.0.0.1:{metrics}/metrics") as reply:
            text = await reply.text()
        for name in ("one", "two"):
            assert f'diptych_runs_total{{agent="{name}",status="completed"}} 1.0' in text
        assert text.count("# TYPE diptych_runs_total") == 1

        newer = again(one, says="I am newer")
        assert (await served.put(newer))["digest"] == newer["digest"]
        served.write(again(one, generation=1, says="the kubelet is late"))
        served.write(again(two, says="by file"), at=3)
        async with asyncio.timeout(20):
            while await ask(http, at(two), headers=TWO) != (200, "by file"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await ask(http, at(one), headers=ONE) == (200, "I am newer")

        elsewhere = changed(newer, port=free_port())
        assert (await served.put(elsewhere))["state"] == "ready"
        assert await ask(http, at(elsewhere), headers=ONE) == (200, "I am newer")
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(http, at(newer), headers=ONE)

        assert (await served.manage("DELETE", "/one"))[0] == 202
        await until(served, "one", None)
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(http, at(elsewhere), headers=ONE)
        served.write(newer)
        (served.folder / "3" / "two.json").unlink()
        await until(served, "two", None)
        assert await served.entry("one") is None  # its file is older than its removal
        assert (await served.manage("DELETE", "/one"))[0] == 404
        assert (await served.put(changed(elsewhere)))["state"] == "ready"


async def test_one_agents_bad_configuration_is_its_own_and_named(tmp_path: Path) -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"loop": {"maxStep": 3}}, "spec.loop.maxStep"),
        ({"tools": [{"name": "time", "command": ["mcp-server-time"]}]}, "time is a command"),
        ({"says": [{}]}, "DEBUG_MOCK_RESPONSES"),
    ]
    bad = [document(f"bad-{n}", **fields) for n, (fields, _) in enumerate(mistakes)]
    two = document("two")
    async with aiohttp.ClientSession() as http, pool(tmp_path, *bad, two) as served:
        for number, (fields, why) in enumerate(mistakes):
            for broken in (bad[number], again(two, generation=2 + number, **fields)):
                entry = await served.put(broken)
                assert (entry["state"], entry["digest"]) == ("failed", broken["digest"])
                assert why in entry["reason"]
            assert await ask(http, at(two), headers=TWO) == (200, "I am two")
        assert (await served.put(again(two, generation=9)))["state"] == "ready"
        assert (await served.put(again(bad[0])))["state"] == "ready"
        await what_is_wrong_is_named(served)


async def what_is_wrong_is_named(served: PoolProcess) -> None:
    one, taken = document("one"), document("taken")
    nobody = changed(document("nobody"), access={})
    await served.put(one)
    lacking = await served.put(again(one, tools=[{"name": "t", "url": "http://127.0.0.1:9/mcp"}]))
    assert lacking["state"] == "ready"
    assert [each["name"] for each in lacking["missing"]] == ["t"]
    in_use = await served.put(changed(taken, port=one["port"]))
    assert (in_use["state"], in_use["reason"]) == (
        "failed",
        f"port {one['port']}: cannot listen on 127.0.0.1:{one['port']}: Address already in use",
    )
    assert "no way to say who asks" in (await served.put(nobody))["reason"]
    for content, why in [
        ({**taken, "port": one["port"]}, "digest: is not that of the document"),
        (one, "name: must be taken"),
        (changed(taken, port="8000"), "port: Input should be a valid integer"),
        ([], "the document: Input should be"),
    ]:
        status, error = await served.manage("PUT", "/taken", content)
        assert status == 422
        assert why in str(error)
    (served.folder / "0" / "torn.json").write_text('{"name": ')
    torn = await until(served, "torn", "failed")
    assert torn
    assert torn["reason"] == "its file: it is not JSON"
    (served.folder / "0" / "torn.json").unlink()
    await until(served, "torn", None)


async def test_the_door_takes_tokens_of_the_pool_and_of_the_agent_that_is_asked(
    tmp_path: Path,
) -> None:
    for_batch = {
        "to": [{"serviceAccount": {"name": "batch", "namespace": "other"}}],
        "may": ["ask"],
    }
    one, two = (
        document("one"),
        document("two", access={"grants": [for_batch]}, may_ask="other/batch"),
    )
    batch = bearer("other/batch", POOL_AUDIENCE)
    forged = bearer(WEB, POOL_AUDIENCE, is_forged=True)
    async with aiohttp.ClientSession() as http, pool(tmp_path, one, two) as served:

        async def status(headers: dict[str, str], model: str, path: str = CHATS) -> int:
            return (await ask(http, served.url, path=path, headers=headers, model=model))[0]

        async def models(headers: dict[str, str]) -> Any:
            async with http.get(f"{served.url}/v1/models", headers=headers) as reply:
                listed = await reply.json()
                return [each["id"] for each in listed["data"]] if reply.ok else reply.status

        assert [await status(BY_POOL, "one"), await status(ONE, "one")] == [200, 200]
        assert await status(batch, "two") == 200
        assert await status(BY_POOL, "two") == 403  # the agent's grants decide
        assert await status(ONE, "two") == 401
        assert [await status(each, "one") for each in ({}, forged, TWO)] == [401] * 3
        assert await status(STRANGER, "one") == 403
        assert await status(BY_POOL, "three") == 404
        assert await status(BY_POOL, "one", f"/agents/one{CHATS}") == 200
        assert [await models(each) for each in (BY_POOL, ONE, batch, {}, forged)] == [
            ["one"],
            ["one"],
            ["two"],
            401,
            401,
        ]
        assert [(await ask(http, at(one), headers=each))[0] for each in (BY_POOL, batch)] == [
            200,
            403,
        ]
        async with http.post(
            f"{served.url}/v1/runs", json={"input": "hi"}, headers=BY_POOL
        ) as reply:
            run = (await reply.json())["id"]
        async with http.get(f"{served.url}/v1/runs/{run}", headers=BY_POOL) as reply:
            assert reply.status == 200

        # Only the operator manages.
        for account, of, expected in [
            (OPERATOR, POOL_AUDIENCE, 200),
            (WEB, POOL_AUDIENCE, 403),
            (OPERATOR, audience("one"), 401),
        ]:
            status, _ = await served.manage("GET", account=account, audience=of)
            assert status == expected
        assert (await served.manage("GET", is_forged=True))[0] == 401
        for method in ("PUT", "DELETE"):
            assert (await served.manage(method, "/one", two, account=WEB))[0] == 403
            async with http.request(method, f"{served.url}/pool/agents/one", json=two) as reply:
                assert reply.status == 401
        assert await ask(http, at(one), headers=ONE) == (200, "I am one")


@pytest.mark.parametrize("has_redis", [True, False])
async def test_changes_under_load_lose_no_run_and_refuse_no_connection(
    tmp_path: Path, has_redis: bool
) -> None:
    """With a Redis runs move to the new form, without one they end in the former."""
    with redis_server() as redis:
        if has_redis:
            write_redis(tmp_path, redis.url)
        async with model_server(slowly) as model:
            spec = {"model": {"name": "m", "endpoint": model.url}, "references": tmp_path}
            one = document("one", **spec)
            grace = "0.2" if has_redis else "20"
            async with (
                pool(tmp_path, one, SHUTDOWN_GRACE_SECONDS=grace) as served,
                aiohttp.ClientSession(headers=ONE, connector=aiohttp.TCPConnector(limit=0)) as http,
            ):
                stop, calls = asyncio.Event(), Counter[str]()

                async def call_again(name: str) -> None:
                    place = cast("PodProcess", Place(at(one)))
                    while not stop.is_set():
                        caller = Caller(f"{name}-{calls[name]}", http, [place], [])
                        await caller.chat("hello")
                        assert (caller.end, caller.text) == ("completed", "one two three")
                        calls[name] += 1
                        await asyncio.sleep(0 if has_redis else 0.5)

                async with asyncio.TaskGroup() as group:
                    for number in range(8 if has_redis else 1):
                        group.create_task(call_again(f"caller-{number}"))
                    for number in range(3):
                        await asyncio.sleep(1.0)
                        entry = await served.put(
                            again(one, generation=2 + number, description=str(number), **spec)
                        )
                        assert entry["state"] == "ready"
                    stop.set()
                assert min(calls.values()) >= 1
                assert bool(served.grep("taking over session")) == has_redis
                served.terminate()
                assert await served.exited(30) == 0


async def test_a_process_that_is_killed_under_load_is_taken_over(tmp_path: Path) -> None:
    with redis_server() as redis:
        write_redis(tmp_path, redis.url)
        async with model_server(slowly) as model:
            spec = {"model": {"name": "m", "endpoint": model.url}, "references": tmp_path}
            names = ("one", "two", "three")
            async with pools(tmp_path, "first", "second") as both:
                places: dict[str, list[Any]] = {name: [] for name in names}
                for each in both:
                    documents = [document(name, **spec) for name in names]
                    each.write(*documents)
                    each.start()
                    for content in documents:
                        places[content["name"]].append(Place(at(content)))
                await all_ready(list(both))
                connector = aiohttp.TCPConnector(limit=0)
                async with aiohttp.ClientSession(connector=connector) as http:
                    callers = []
                    async with asyncio.TaskGroup() as group:
                        for number in range(12):
                            name = names[number % 3]
                            as_web = cast("aiohttp.ClientSession", AsWeb(http, name))
                            callers.append(Caller(f"c-{number}", as_web, places[name], []))
                            group.create_task(callers[-1].chat("hello"))
                        while len(model.requests) < 12:  # noqa: ASYNC110 - other processes
                            await asyncio.sleep(0.05)
                        both[0].kill()
                for caller in callers:
                    assert (caller.end, caller.text) == ("completed", "one two three")
                assert both[1].grep("taking over session")


async def test_a_flood_at_one_agent_leaves_the_others_alone(tmp_path: Path) -> None:
    async with model_server(slowly) as model:
        limits = {"limits": {"runsAtOnce": 2}}
        endpoint = {"name": "m", "endpoint": model.url}
        one, two = document("one", access=limits, model=endpoint), document("two")
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            pool(tmp_path, one, two) as served,
        ):
            begun = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
            begun += b"Content-Type: application/json\r\n"
            begun += f"Authorization: {ONE['Authorization']}\r\n\r\n".encode()
            idle = [await asyncio.open_connection("127.0.0.1", one["port"]) for _ in range(600)]
            for _, writer in idle:  # requests that never end
                writer.write(begun)
            flood = [asyncio.create_task(ask(http, at(one), headers=ONE)) for _ in range(60)]
            for _ in range(20):
                assert await ask(http, at(two), headers=TWO) == (200, "I am two")
                assert await ask(http, served.url, headers=BY_POOL, model="two") == (
                    200,
                    "I am two",
                )
            refused = Counter(status for status, _ in await asyncio.gather(*flood))
            assert set(refused) <= {200, 429, 503}
            assert refused[503]  # all of its connections are taken
            for _, writer in idle:
                writer.close()
