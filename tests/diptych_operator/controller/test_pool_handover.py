"""Documents are handed to a pool's pods over HTTP, and their reports queue the Agents."""

import asyncio
import contextlib

import pytest
from aiohttp import web
from support.agents import agent_object
from support.operator_process import until
from support.pools import POOL, pool_object, pool_pod

from diptych_operator.controller import pool_handover
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.pool_handover import PoolHandover
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.pool_documents import Document
from diptych_operator.resources.kinds import AGENT, AGENT_POOL, POD, ObjectKey
from diptych_operator.status.conditions import MissingDependency
from diptych_operator.status.pooled import PoolEntry

END = {"schedule": "a-morning-1", "run_id": "r", "end": "completed", "ended_at": "2026-11-28"}
AGENT_A = ObjectKey(AGENT, "team", "a")


def document(name, digest, **more):
    content = {"name": name, "port": 10000, "generation": 1, "digest": digest}
    return Document({**content, "manifest": {}, "access": {}, **more})


class Tokens:
    async def token(self, audience):
        return f"for {audience}"


class Pod:
    """The management routes of a pool's pod (`diptych.serve.pool_door`)."""

    def __init__(self):
        self.entries, self.requests, self.refuses = {}, [], ""
        self.answer, self.missing = None, []

    async def handle(self, request):
        name = request.match_info.get("name")
        assert request.headers["Authorization"] == "Bearer for diptych.dev/team/pool/shared"
        if self.answer is not None:
            return web.Response(text=self.answer)
        if name is None:
            return web.json_response(list(self.entries.values()))
        self.requests.append((request.method, name))
        if request.method == "DELETE":
            self.entries[name]["state"] = "draining"
            return web.json_response(self.entries[name], status=202)
        content = await request.json()
        if self.refuses:
            return web.json_response({"error": {"message": self.refuses}}, status=422)
        entry = {"name": name, "digest": content["digest"], "port": 10000, "reason": ""}
        self.entries[name] = {**entry, "state": "starting"}
        return web.json_response(self.entries[name], status=202)

    def settle(self):
        for entry in self.entries.values():
            entry.update(state="ready", missing=self.missing, scheduled=[END])


@contextlib.asynccontextmanager
async def listening(monkeypatch):
    pod = Pod()
    app = web.Application()
    app.router.add_route("*", "/pool/agents", pod.handle)
    app.router.add_route("*", "/pool/agents/{name}", pod.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr(pool_handover, "PORT", runner.addresses[0][1])
    try:
        yield pod
    finally:
        await runner.cleanup()


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.setattr(pool_handover, "PERIOD", 0.05)
    monkeypatch.setattr(pool_handover, "QUICK_PERIOD", 0.05)
    cache, queue = ObjectCache(), WorkQueue()
    cache.put(AGENT_POOL, pool_object())
    cache.put(POD, pool_pod("p-0"))
    cache.put(AGENT, agent_object("a", hosting={"pool": "shared"}))
    queue.start()
    return cache, queue, PoolHandover(cache, queue, Tokens())


@contextlib.asynccontextmanager
async def running(handover):
    task = asyncio.create_task(handover.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def queued(queue, wanted):
    """Take what is queued until a key comes."""
    async with asyncio.timeout(10):
        while (key := await queue.get()) != wanted:
            queue.done(key)
        queue.done(key)


async def test_a_pod_gets_what_it_lacks_and_loses_what_it_should_not_have(parts, monkeypatch):
    cache, queue, handover = parts
    async with listening(monkeypatch) as pod, running(handover):
        handover.hand_over(POOL, {"a": document("a", "1"), "b": document("b", "2")})
        await queued(queue, AGENT_A)
        record = handover.record(POOL)
        assert record.reports["p-0"]["a"] == PoolEntry("1", "starting")
        assert not record.is_settled([pool_pod("p-0")])
        pod.missing = [{"kind": "server", "name": "wiki", "reason": "away"}]
        pod.settle()
        await queued(queue, AGENT_A)
        wiki = MissingDependency("server", "wiki", "away")
        assert record.reports["p-0"]["a"] == PoolEntry("1", "ready", "", (wiki,), (END,))
        assert cache.scheduled_ends[AGENT_A] == {"a-morning-1": END}
        assert cache.missing_dependencies[AGENT_A] == (wiki,)
        assert record.is_settled([pool_pod("p-0")])
        assert not record.is_settled([pool_pod("p-0"), pool_pod("p-1")])
        assert sorted(pod.requests) == [("PUT", "a"), ("PUT", "b")]
        pod.requests.clear()
        handover.hand_over(POOL, {"b": document("b", "3")})
        await until(lambda: record.reports["p-0"]["b"].digest == "3")
        assert sorted(pod.requests) == [("DELETE", "a"), ("PUT", "b")]
        assert record.reports["p-0"]["a"].state == "draining"
        del pod.entries["a"]
        await until(lambda: record.reports["p-0"].keys() == {"b"})


async def test_a_document_that_a_pod_refuses_is_reported_as_failed(parts, monkeypatch):
    _, queue, handover = parts
    async with listening(monkeypatch) as pod, running(handover):
        pod.refuses = "digest: is not that of the document"
        handover.hand_over(POOL, {"a": document("a", "1")})
        await queued(queue, AGENT_A)
        assert handover.record(POOL).reports["p-0"]["a"] == PoolEntry("1", "failed", pod.refuses)


async def test_before_the_pool_was_reconciled_nothing_is_changed(parts, monkeypatch):
    _, queue, handover = parts
    async with listening(monkeypatch) as pod:
        entry = {"name": "a", "digest": "1", "port": 10000, "state": "ready", "reason": ""}
        pod.entries["a"] = entry
        async with running(handover):
            await queued(queue, AGENT_A)
        assert pod.requests == []


@pytest.mark.parametrize("answer", ["not JSON", '[{"name": "a"}]', "[1]", "{}"])
async def test_a_pod_that_answers_nonsense_or_not_at_all_has_no_report(parts, monkeypatch, answer):
    _, _, handover = parts
    async with listening(monkeypatch) as pod:
        pod.entries["a"] = {"name": "a", "digest": "1", "state": "ready"}
        async with running(handover):
            await until(lambda: handover.record(POOL).reports.get("p-0"))
            pod.answer = answer
            await until(lambda: "p-0" not in handover.record(POOL).reports)
