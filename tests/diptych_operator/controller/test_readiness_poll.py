"""Pods are polled for missing dependencies."""

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
from support.agents import agent_object
from support.api_in_thread import ApiInThread
from support.operator_process import SETTINGS, changes, condition, quicken, running, until

from diptych_operator.controller import readiness_poll
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.desired.access import AccessSettings
from diptych_operator.desired.schedules import cron_job_name
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import AGENT, EVENT, POD, ObjectKey
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import MissingDependency


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


@pytest.fixture
def api():
    with ApiInThread() as found:
        yield found


async def test_missing_dependencies_are_polled_and_reported(api, monkeypatch):
    missing = [{"kind": "server", "name": "wiki", "reason": "connection refused"}]
    async with pod_that_misses(missing, monkeypatch):
        api.put(AGENT, agent_object())
        async with running(api):
            await until(lambda: condition(api, "Ready"))
            assert condition(api, "Degraded") == ("Unknown", "NotAsked")
            api.put(POD, RUNNING_POD)
            await until(lambda: condition(api, "Degraded") == ("True", "ToolServerUnavailable"))
            missing.clear()
            await until(lambda: condition(api, "Degraded") == ("False", "NothingMissing"))
            api.remove(POD, ("team", "p"))
            await until(lambda: condition(api, "Degraded") == ("Unknown", "NotAsked"))


async def test_how_a_schedule_s_last_run_ended_is_polled_and_reported(api, monkeypatch):
    content = agent_object(schedules=[{"name": "daily", "cron": "0 7 * * *", "message": "?"}])
    cron_job = cron_job_name(Agent.read(content), "daily")
    older, newer = (
        {"schedule": cron_job, "run_id": run, "end": end, "ended_at": f"2026-11-2{day}T06:00:09Z"}
        for run, end, day in (("run-1", "failed", 7), ("run-2", "completed", 8))
    )
    async with pod_that_misses([], monkeypatch, scheduled=[newer, older]):
        api.put(AGENT, content)
        api.put(POD, RUNNING_POD)
        async with running(api):
            await until(lambda: _last_run(api) == ("run-2", "completed"))


def _last_run(api):
    found = (api.get(AGENT, ("team", "coordinator")).get("status") or {}).get("schedules", [{}])
    return found[0].get("lastRun"), found[0].get("lastEnd")


RUNNING_POD = {
    "metadata": {
        "name": "p",
        "namespace": "team",
        "labels": {
            "app.kubernetes.io/name": "diptych-agent",
            "app.kubernetes.io/instance": "coordinator",
            "app.kubernetes.io/managed-by": "diptych-operator",
        },
    },
    "status": {"phase": "Running", "podIP": "127.0.0.1"},
}


async def test_a_pod_is_asked_with_a_token_for_its_agent_alone(api, monkeypatch):
    heads = []
    async with pod_that_misses([], monkeypatch, heads):
        api.put(AGENT, agent_object())
        api.put(POD, RUNNING_POD)
        settings = replace(
            SETTINGS,
            platform=replace(SETTINGS.platform, access=AccessSettings(operator=("system", "op"))),
        )
        async with running(api, settings):
            await until(lambda: condition(api, "Degraded") == ("False", "NothingMissing"))
    wanted = "Authorization: Bearer system/op for diptych.dev/team/coordinator"
    assert all(wanted in head for head in heads)


async def test_a_pod_that_does_not_say_what_it_misses_is_not_taken_for_one_that_misses_nothing(
    api, monkeypatch
):
    heads = []
    async with pod_that_misses(None, monkeypatch, heads):
        api.put(AGENT, agent_object())
        api.put(POD, RUNNING_POD)
        async with running(api):
            await until(lambda: len(heads) > 1)
            assert condition(api, "Degraded") == ("Unknown", "NotAsked")


@contextlib.asynccontextmanager
async def pod_that_misses(missing, monkeypatch, heads=None, **more):
    """A pod's `/ready`, at the port where the operator asks for it; None tells no details."""

    async def ready(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head.decode())
        body = json.dumps({} if missing is None else {"missing": missing, **more}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(ready, "127.0.0.1", 0)
    monkeypatch.setattr(Agent, "ready_port", server.sockets[0].getsockname()[1])
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def test_a_restart_among_polled_agents_writes_nothing(api, monkeypatch):
    missing = [{"kind": "server", "name": "wiki", "reason": "connection refused"}]
    async with pod_that_misses(missing, monkeypatch):
        api.put(AGENT, agent_object())
        api.put(POD, RUNNING_POD)
        async with running(api):
            await until(lambda: condition(api, "Degraded") == ("True", "ToolServerUnavailable"))
        api.writes.clear()
        async with running(api):
            await asyncio.sleep(0.8)
        assert changes(api) == []


def test_what_one_pod_of_several_misses_names_that_pod():
    key, model = MissingDependency("key", "k", "gone"), MissingDependency("model", "m", "away")
    answers = {"b": [key, model, model], "a": [key]}
    assert readiness_poll.merged(answers) == (
        key,
        MissingDependency("model", "m", "away (pod b)"),
    )


async def test_a_pod_that_does_not_start_is_explained_by_its_events(api, monkeypatch):
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    scheduled = {"type": "PodScheduled", "status": "True", **since}
    pending = {**RUNNING_POD, "status": {"phase": "Pending", "conditions": [scheduled]}}
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Ready"))
        uid = api.put(POD, pending)["metadata"]["uid"]
        for number, kind in enumerate(("Normal", "Warning")):
            event = {
                "metadata": {"name": f"p.{number}", "namespace": "team"},
                "regarding": {"uid": uid},
                "reason": "FailedMount",
                "note": 'configmap "corporate-ca" not found',
                "type": kind,
            }
            api.put(EVENT, event)
        await until(lambda: condition(api, "Ready") == ("False", "VolumeNotMounted"))
        api.put(POD, RUNNING_POD)
        await until(lambda: condition(api, "Ready") == ("False", "RollingOut"))


async def test_what_is_known_of_a_pod_stands_while_its_events_are_listed():
    cache, key = ObjectCache(), ObjectKey(AGENT, "team", "coordinator")
    scheduled = {"type": "PodScheduled", "status": "True"}
    scheduled["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    metadata = {**RUNNING_POD["metadata"], "uid": "1"}
    status = {"phase": "Pending", "conditions": [scheduled]}
    cache.put(POD, {"metadata": metadata, "status": status})
    known = cache.start_problems[key] = Problem("VolumeNotMounted", "no such volume")
    seen = []

    class Client:
        async def warnings(self, *_):
            seen.append(cache.start_problems.get(key))
            return []

    poll = readiness_poll.ReadinessPoll(Client(), cache, None, None)
    assert not await poll._ask_for_events(key)
    assert (seen, cache.start_problems) == ([known], {key: known})


@pytest.mark.parametrize(("hours", "where"), [(2, "120 min ahead of"), (-2, "120 min behind")])
def test_a_pod_that_refuses_the_operators_token_is_reported_with_its_clock(hours, where):
    challenge = {"WWW-Authenticate": 'Bearer error_description="the token has expired"'}
    refused = "refuses the operator's token: the token has expired"
    date = {"Date": formatdate(time.time() + hours * 3600, usegmt=True)}
    clock = f". Its clock is {where} the operator's: compare its node's clock"
    assert readiness_poll._refusal(challenge | date) == refused + clock
    for same in ({}, {"Date": formatdate(usegmt=True)}):
        assert readiness_poll._refusal(challenge | same) == refused
    assert readiness_poll._refusal(date) == ""
