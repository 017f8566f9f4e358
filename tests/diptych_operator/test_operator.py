"""The whole operator, kopf included, against an API in this process."""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from support.agents import agent_object
from support.api_in_thread import ApiInThread
from support.kubernetes import ErrorResponse
from support.operator_process import NAME, SETTINGS, changes, condition, quicken, running, until

from diptych_operator.resources.kinds import (
    AGENT,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    LEASE,
    SERVICE,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


@pytest.fixture
def api():
    with ApiInThread() as found:
        yield found


async def test_k6_what_is_deleted_or_edited_by_hand_comes_back(api):
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Ready"))
        api.remove(SERVICE, NAME)
        await until(lambda: api.get(SERVICE, NAME))
        api.edit(DEPLOYMENT, NAME, lambda d: d["metadata"].pop("labels"))
        await until(lambda: api.get(DEPLOYMENT, NAME)["metadata"].get("labels"))
        api.edit(DEPLOYMENT, NAME, lambda d: d["spec"].update(replicas=9))
        await until(lambda: api.get(DEPLOYMENT, NAME)["spec"]["replicas"] == 1)


async def test_secrets_are_never_read(api):
    asked = []

    def before(request, content):
        asked.append(request.path)

    api.before = before
    spec = {"instructionsFrom": {"configMapKeyRef": {"name": "prompts", "key": "p"}}}
    api.put(AGENT, agent_object(**spec))
    async with running(api):
        await until(lambda: condition(api, "Ready"))
    assert [path for path in asked if "secrets" in path] == []


async def test_a_restart_among_good_agents_writes_nothing(api):
    for number in range(4):
        api.put(AGENT, agent_object(f"a{number}"))
    async with running(api):
        await until(lambda: all(condition(api, "Ready", ("team", f"a{n}")) for n in range(4)))
        api.settle()
        done = ("True", "Ready")
        await until(
            lambda: all(condition(api, "Ready", ("team", f"a{n}")) == done for n in range(4))
        )
    api.writes.clear()
    before = api.dump()
    async with running(api):
        await asyncio.sleep(0.8)
    assert changes(api) == []
    assert api.dump() == before


async def test_k3_a_watch_that_was_cut_and_forgotten_misses_nothing(api):
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Ready"))
        api.drop_watches()
        api.put(AGENT, agent_object("second"))
        api.remove(SERVICE, NAME)
        api.drop_watches()
        await until(lambda: api.get(DEPLOYMENT, ("team", "second")))
        await until(lambda: api.get(SERVICE, NAME))


async def test_k4_an_api_that_is_away_is_waited_for(api):
    def before(request, content):
        raise ErrorResponse(503, "away")

    api.before = before
    async with running(api, replace(SETTINGS, candidate=None)) as task:
        await asyncio.sleep(0.3)
        assert not task.done()
        api.put(AGENT, agent_object())
        api.before = lambda *_: None
        await until(lambda: condition(api, "Ready"))


async def test_k5_watches_that_have_fallen_silent_are_made_up_for_by_lists(api):
    async with running(api):
        await until(lambda: api.get(LEASE, ("system", "diptych-operator")))
        api.mute = True
        api.put(AGENT, agent_object())
        await until(lambda: condition(api, "Ready"))
        api.remove(SERVICE, NAME)
        await until(lambda: api.get(SERVICE, NAME))
        api.mute = False


async def test_k11_an_agent_of_another_version_harms_nobody(api):
    """The API keeps what was stored before the CRD changed, whatever the CRD says now."""
    stored = {"metadata": {"name": "old", "namespace": "team"}}
    api.put(AGENT, stored | {"spec": {"unknown": {"field": 1}}})
    api.put(AGENT, {"metadata": {"name": "odd", "namespace": "team"}, "spec": {"tools": "none"}})
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Ready"))
        await until(lambda: api.get(DEPLOYMENT, ("team", "old")))
        assert api.get(AGENT, ("team", "old"))["spec"] == {"unknown": {"field": 1}}
        api.remove(SERVICE, NAME)
        await until(lambda: api.get(SERVICE, NAME))


async def test_k7_what_cannot_be_served_is_no_hot_loop(api):
    def before(request, content):
        if request.method == "PATCH" and "deployments" in request.path:
            raise ErrorResponse(422, "spec.template: invalid")

    api.before = before
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Accepted") == ("False", "Refused"))
        await asyncio.sleep(0.8)
    tries = [w for w in api.writes if "deployments" in w[1]]
    assert len(tries) <= 3  # the first look, the claim, the first poll


async def test_k8_an_agent_deleted_while_the_operator_is_down_takes_all_with_it(api):
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Ready"))
    api.remove(AGENT, NAME)
    assert api.dump() == []
    api.writes.clear()
    async with running(api):
        await asyncio.sleep(0.3)
    assert changes(api) == []


async def test_k9_many_agents_at_once_are_served_in_seven_writes_each(api):
    async with running(api):
        await until(lambda: api.get(LEASE, ("system", "diptych-operator")))
        for number in range(30):
            api.put(AGENT, agent_object(f"a{number}"))
        await until(lambda: all(condition(api, "Ready", ("team", f"a{n}")) for n in range(30)), 60)
        assert len(changes(api)) <= 30 * 7


async def test_k12_of_two_edits_at_once_the_last_one_counts(api):
    api.put(AGENT, agent_object())
    async with running(api):
        await until(lambda: condition(api, "Ready"))
        for text in ("first", "second"):
            api.put(AGENT, agent_object(instructions=text))
            await asyncio.sleep(0.01)
        await until(lambda: any('"second"' in str(c["data"]) for c in api.all(CONFIG_MAP)))
        # What replaces an Agent here replaces its status: until the operator writes, it has none.
        await until(lambda: api.get(AGENT, NAME).get("status", {}).get("observedGeneration") == 3)


async def test_k13_a_right_to_watch_that_is_missing_is_waited_for(api):
    def before(request, content):
        if request.method == "GET" and "networkpolicies" in request.path:
            raise ErrorResponse(403, "cannot list networkpolicies")

    api.before = before
    api.put(AGENT, agent_object())
    async with running(api) as task:
        await asyncio.sleep(0.3)
        assert not task.done()
        assert api.all(DEPLOYMENT) == []
        api.before = lambda *_: None
        await until(lambda: condition(api, "Ready"))


@contextlib.contextmanager
def process(api, folder, identity, lease="diptych-operator"):
    """Run the operator as a process of its own, with a kubeconfig for the API."""
    kubeconfig = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": api.url}}],
        "users": [{"name": "test", "user": {}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(kubeconfig))
    environ = {**os.environ, "KUBECONFIG": str(file), "POD_NAME": identity, "HEALTH_PORT": "0"}
    environ["LEASE_NAME"] = lease
    flags = ["--pod-image", "diptych:1", "--namespace", "system"]
    command = [sys.executable, "-m", "diptych_operator", *flags]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


async def test_k10_of_two_operators_one_is_active_until_it_goes(api, tmp_path):
    with process(api, tmp_path, "one") as first:
        await until(lambda: _holder(api) == "one", 15)
        with process(api, tmp_path, "two") as second:
            api.put(AGENT, agent_object())
            await until(lambda: condition(api, "Ready"))
            assert _holder(api) == "one"
            first.terminate()
            assert await asyncio.to_thread(first.wait, 10) == 0
            await until(lambda: _holder(api) == "two", 15)
            api.put(AGENT, agent_object("second"))
            await until(lambda: api.get(DEPLOYMENT, ("team", "second")))
            second.terminate()
            assert await asyncio.to_thread(second.wait, 10) == 0


async def test_k10_of_two_releases_one_serves_a_namespace_and_both_say_so(api, tmp_path):
    with process(api, tmp_path, "one", "first") as first:
        api.put(AGENT, agent_object())
        await until(lambda: condition(api, "Ready"))
        with process(api, tmp_path, "two", "second") as second:
            await until(lambda: any(e["reason"] == "StandsBack" for e in api.all(EVENT)))
            api.writes.clear()
            put_all = [agent_object(f"more-{n}") for n in range(3)]
            for content in put_all:
                api.put(AGENT, content)
            await until(lambda: condition(api, "Ready", ("team", "more-2")))
            await asyncio.sleep(1)
            assert len(changes(api)) <= 3 * 7
            second.terminate()
            said = (await asyncio.to_thread(second.communicate))[1].decode()
        first.terminate()
        await asyncio.to_thread(first.communicate)
    version = importlib.metadata.version("diptych")
    assert (
        f"operator system/first {version} serves namespace team; operator system/second {version} "
        "watches it, too, and stands back"
    ) in said


def _holder(api):
    lease = api.get(LEASE, ("system", "diptych-operator"))
    return lease and lease["spec"].get("holderIdentity")


async def test_a_namespaced_operator_looks_nowhere_else(api):
    asked = set()

    def before(request, content):
        asked.add(request.path)

    api.before = before
    api.put(AGENT, agent_object())
    api.put(AGENT, agent_object("stranger", "elsewhere"))
    async with running(api, replace(SETTINGS, namespaces=("team",))):
        await until(lambda: condition(api, "Ready"))
    assert api.get(DEPLOYMENT, ("elsewhere", "stranger")) is None
    inside = ("/namespaces/team/", "/namespaces/system/leases")
    lists = {p for p in asked if p.startswith(("/api/v1/", "/apis/")) and p.count("/") > 3}
    assert [path for path in lists if not any(part in path for part in inside)] == []
