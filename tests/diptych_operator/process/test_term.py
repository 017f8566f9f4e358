"""How a term of the operator ends: by a signal, by a failure, and always wholly."""

import asyncio
import contextlib
import signal

import pytest
from support.agents import agent_object
from support.api_in_thread import ApiInThread
from support.kubernetes import ErrorResponse
from support.operator_process import condition, operator, quicken, running, until

from diptych_operator.process import term
from diptych_operator.resources.kinds import AGENT, LEASE
from diptych_operator.watch import resync


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


@pytest.fixture
def api():
    with ApiInThread() as found:
        yield found


async def test_a_signal_ends_the_session_and_releases_the_lease(api):
    task = asyncio.create_task(operator(api).run_term())
    api.put(AGENT, agent_object())
    await until(lambda: condition(api, "Ready"))
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(15):
        assert await task is False
    lease = api.get(LEASE, ("system", "diptych-operator"))
    assert "holderIdentity" not in lease["spec"]


async def test_a_kind_that_is_deleted_ends_the_term_at_once(api, monkeypatch, caplog):
    monkeypatch.setattr(resync, "PERIOD", 60.0)  # else its next list would find out
    async with running(api) as task:
        api.put(AGENT, agent_object())
        await until(lambda: condition(api, "Ready"))

        def deleted(request, content):
            if "/agents" in request.path:
                raise ErrorResponse(404, "the server could not find the requested resource")

        api.before = deleted
        api.drop_watches()
        async with asyncio.timeout(5):
            assert await task is True  # another one follows, and waits until all can be listed
    assert "has somebody deleted the CRD?" in caplog.text


async def test_nobody_is_asked_who_the_user_is(api, monkeypatch):
    """A pod's user may have no entry in /etc/passwd, and no name."""

    def nobody():
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr("getpass.getuser", nobody)
    api.put(AGENT, agent_object())
    async with running(api) as task:
        await until(lambda: condition(api, "Ready"))
        api.put(AGENT, agent_object("second"))
        await until(lambda: task.done() or condition(api, "Ready", ("team", "second")))
        assert not task.done()


async def test_failures_are_counted_and_another_term_follows(api, monkeypatch):
    async def broken(**_):
        raise RuntimeError("oh")

    monkeypatch.setattr(term.kopf, "operator", broken)
    begun = operator(api)
    for _ in range(2):
        assert await begun.run_term() is True
    assert b"diptych_operator_failures_total 2.0" in begun.metrics.render({}, {}, 0.0)


async def test_a_resync_that_breaks_ends_the_session(api, monkeypatch):
    async def broken(_):
        raise LookupError("a list without a version")

    monkeypatch.setattr(resync.Resync, "run", broken)
    begun = operator(api)
    async with asyncio.timeout(10):
        assert await begun.run_term() is True


async def test_a_cancellation_that_is_lost_is_repeated(monkeypatch):
    monkeypatch.setattr(term, "STOP_SECONDS", 0.02)
    begun = asyncio.Event()

    async def stubborn(times):
        begun.set()
        for _ in range(times):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    stubborn_tasks = [asyncio.create_task(stubborn(times)) for times in (1, 3, 20)]
    await begun.wait()
    left = await term.end_tasks(stubborn_tasks)
    assert left == {stubborn_tasks[2]}
    while not stubborn_tasks[2].done():
        stubborn_tasks[2].cancel()
        await asyncio.sleep(0)
