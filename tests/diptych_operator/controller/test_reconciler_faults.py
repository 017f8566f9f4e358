"""What a reconcile survives: faults of the API at any request, and a crash at any write."""

from collections.abc import Callable
from itertools import cycle, islice

import pytest
from support.agents import agent_object, service
from support.kubernetes import ErrorResponse
from support.pod_templates import MISTAKES
from support.reconciler_harness import KEY, NAME, Harness, served

from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.obstacles import RETRY_SECONDS
from diptych_operator.controller.workers import Workers
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import AGENT, CONFIG_MAP, DEPLOYMENT, EVENT, SERVICE


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


def put(harness, **spec):
    return harness.api.put(AGENT, agent_object(**spec))


RESET = None  # the connection
FAULTS = [(500, {}), (RESET, {}), (429, {"Retry-After": "7"}), (409, {}), (503, {})]


async def test_k1_a_fault_at_any_request_delays_and_changes_nothing():
    wanted = await undisturbed()
    for number, (status, headers) in enumerate(islice(cycle(FAULTS), 3 * len(FAULTS))):
        async with served() as harness:
            requests = [0]

            def before(request, content, requests=requests, fault=(number, status, headers)):
                number, status, headers = fault
                requests[0] += 1
                if requests[0] == number + 8:  # after the first look
                    if status is RESET:
                        request.transport.abort()
                        raise ErrorResponse(500, "gone")
                    raise ErrorResponse(status, "try again", headers)

            put_all(harness)
            harness.api.before = before
            await harness.until_done()
            harness.api.before = lambda *_: None
            harness.api.settle()
            await harness.until_done()
            assert harness.api.dump() == wanted, (number, status)


def put_all(harness):
    harness.api.put(SERVICE, service("wiki"))
    put(harness, agents=[{"name": "researcher"}])
    tools = [{"name": "t", "serviceRef": {"name": "wiki"}}]
    harness.api.put(AGENT, agent_object("researcher", tools=tools, replicas=2))


def change_all(harness):
    put(harness, instructions="New.", agents=[{"name": "researcher"}])
    harness.api.put(AGENT, agent_object("researcher", replicas=1))


async def undisturbed(change: Callable | None = None):
    async with served() as harness:
        put_all(harness)
        await harness.until_done()
        harness.api.settle()
        await harness.until_done()
        if change:
            change(harness)
            await harness.until_done()
            harness.api.settle()
            await harness.until_done()
        return harness.api.dump()


class Killed(BaseException):
    """What happens to an operator that is killed."""


@pytest.mark.timeout(300)  # ten seconds of computing, with what other work leaves of the machine
async def test_k2_being_killed_at_any_write_leaves_the_same_in_the_end():
    """A death after a write is one before the next: the operator that follows knows of neither."""
    wanted = await undisturbed(change_all)
    killed = True
    number = 0
    while killed:
        killed = False
        async with served() as harness:
            writes = [0]

            original = harness.client._request

            async def ask(method, *args, original=original, writes=writes, number=number, **kwargs):
                nonlocal killed
                if method == "GET":
                    return await original(method, *args, **kwargs)
                writes[0] += 1
                try:
                    return await original(method, *args, **kwargs)
                finally:
                    if writes[0] == number + 1:
                        killed = True
                        raise Killed

            harness.client._request = ask
            harness = await live_on(harness, put_all)
            harness = await live_on(harness, change_all)
            assert harness.api.dump() == wanted, number
        number += 1
    assert number > 15


async def live_on(harness, step):
    """Change something and come to rest, with a new operator after each death."""
    step(harness)
    for settle in (False, True):
        if settle:
            harness.api.settle()
        try:
            await harness.until_done()
        except Killed:
            harness = Harness(harness.api, harness.client)  # with an empty picture
            await harness.until_done()
    return harness


async def test_k7_a_malformed_pod_template_is_the_manifests_fault(harness):
    case = MISTAKES[0]  # of all of them the real API says so: test_real_api
    put(harness)
    await harness.reconcile()
    harness.api.settle()
    await harness.until_done()
    configs, deployments = harness.names(CONFIG_MAP), harness.api.all(DEPLOYMENT)
    put(harness, podTemplate={"spec": case.spec})
    assert await harness.reconcile() == RETRY_SECONDS
    assert harness.conditions()["Accepted"] == ("False", "Refused")
    assert case.field.rpartition(".")[2] in harness.message("Accepted")
    assert harness.conditions()["Ready"] == ("True", "LastGoodRevision")
    assert (harness.names(CONFIG_MAP), harness.api.all(DEPLOYMENT)) == (configs, deployments)
    status = harness.api.get(AGENT, NAME)["status"]
    assert status["observedGeneration"] == harness.api.get(AGENT, NAME)["metadata"]["generation"]


WEBHOOK_IS_GONE = (
    'Internal error occurred: failed calling webhook "x.example.com": failed to call webhook: '
    'Post "https://x.x.svc:443/?timeout=10s": service "x" not found'
)


@pytest.mark.parametrize(("method", "path"), [("PATCH", "deployments"), ("PATCH", "configmaps")])
async def test_k1_a_write_that_fails_three_times_is_said_to_fail(harness, method, path):
    def before(request, content):
        if request.method == method and path in request.path:
            raise ErrorResponse(500, WEBHOOK_IS_GONE)

    put(harness)
    harness.api.before = before
    for _ in range(2):
        with pytest.raises(ApiError):
            await harness.reconcile()
    assert harness.conditions() == {}
    for _ in range(2):
        with pytest.raises(ApiError):
            await harness.reconcile()
        assert harness.conditions()["Progressing"] == ("False", "WriteFailed")
        assert harness.conditions()["Accepted"] == ("True", "Accepted")
        assert 'failed calling webhook "x.example.com"' in harness.message("Progressing")
    assert [event["reason"] for event in harness.api.all(EVENT)] == ["WriteFailed"]
    harness.api.before = lambda *_: None
    await harness.until_done()
    assert harness.conditions()["Progressing"] == ("True", "RollingOut")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('deployments.apps "a" is forbidden: User "x" cannot patch resource "d"', "Forbidden"),
        ('deployments.apps "a" is forbidden: exceeded quota: q, requested: count=1', "Denied"),
        ('admission webhook "x.example.com" denied the request: no', "Denied"),
    ],
)
async def test_a_missing_right_and_a_rule_of_the_cluster_differ(harness, words, reason):
    def before(request, content):
        if request.method == "PATCH" and "deployments" in request.path:
            raise ErrorResponse(403, words)

    put(harness)
    harness.api.before = before
    await harness.reconcile()
    assert harness.conditions()["Progressing"] == ("False", reason)
    assert words in harness.message("Progressing")


async def test_what_is_denied_of_a_new_generation_is_not_said_to_be_ready(harness):
    put(harness)
    await harness.until_done()
    harness.api.settle()
    await harness.until_done()

    def before(request, content):
        if request.method == "PATCH" and "deployments" in request.path:
            raise ErrorResponse(403, 'admission webhook "x.example.com" denied the request: no')

    harness.api.before = before
    put(harness, instructions="two")
    await harness.reconcile()
    assert harness.conditions()["Ready"] == ("True", "LastGoodRevision")
    harness.api.before = lambda *_: None
    await harness.until_done()
    harness.api.settle()
    await harness.until_done()
    assert harness.conditions()["Ready"] == ("True", "Ready")


async def test_in_a_namespace_that_is_being_deleted_nothing_is_made_or_said(harness, caplog):
    def terminating(request, content):
        if request.method != "GET":
            why = "unable to create new content in namespace team because it is being terminated"
            raise ErrorResponse(403, f'services "coordinator" is forbidden: {why}')

    put(harness)
    await harness.observe()
    harness.api.before = terminating
    harness.queue.start()
    harness.queue.add(KEY)
    workers = Workers(harness.queue, harness.reconcilers, Metrics())
    with caplog.at_level("DEBUG", logger="diptych_operator"):
        assert await workers._process(await harness.queue.get()) == "terminating"
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert len(harness.queue) == 0
    assert harness.conditions() == {}
