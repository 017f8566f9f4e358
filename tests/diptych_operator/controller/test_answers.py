"""What an answer of the API shows before the watch does is not lost."""

import pytest
from support.agents import agent_object
from support.reconciler_harness import KEY, NAME, served

from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, SERVICE, ObjectKey

OTHER = ("team", "other")


@pytest.fixture
async def harness():
    async with served() as found:
        found.api.put(AGENT, agent_object())
        await found.until_done()
        found.api.settle()
        yield found


def queued(harness):
    """Take out who is in the queue; what the harness observes puts nobody in it."""
    return {harness.queue._queue.popleft() for _ in range(len(harness.queue))}


def edit_before(harness, path, **spec):
    """Let somebody edit the Agent while the next write to `path` is on its way."""

    def before(request, content):
        if request.method == "PATCH" and request.path.endswith(path):
            harness.api.before = lambda *_: None
            harness.api.edit(AGENT, NAME, lambda one: one["spec"].update(spec))

    harness.api.before = before


async def test_an_edit_that_the_answer_to_a_status_shows_first_is_reconciled(harness):
    queued(harness)
    edit_before(harness, "coordinator/status", instructions="late")
    await harness.reconcile()
    assert harness.cache.agent(NAME).generation == 2
    assert queued(harness) == {KEY}


async def test_a_status_alone_queues_nobody(harness):
    harness.api.put(AGENT, agent_object("other", agents=[{"name": "coordinator"}]))
    await harness.observe()
    queued(harness)
    await harness.reconcile()
    assert harness.conditions()["Ready"] == ("True", "Ready")
    assert queued(harness) == set()


async def test_who_waits_for_the_service_of_an_agent_goes_on_when_it_is_made(harness):
    url = "http://fresh.team.svc:8000"
    harness.api.put(AGENT, agent_object("other", agents=[{"as": "fresh", "url": url}]))
    await harness.reconcile(OTHER)
    assert harness.conditions(OTHER)["ResolvedRefs"] == ("False", "ServiceNotFound")
    harness.api.put(AGENT, agent_object("fresh"))
    await harness.observe()
    queued(harness)
    await harness.reconciler.reconcile(("team", "fresh"))
    assert harness.api.get(SERVICE, ("team", "fresh"))
    assert queued(harness) == {ObjectKey(AGENT, *OTHER)}
    await harness.reconciler.reconcile(OTHER)
    assert harness.conditions(OTHER)["ResolvedRefs"] == ("True", "ResolvedRefs")


async def test_pods_that_the_answer_to_an_own_write_shows_first_are_reconciled(harness):
    """What follows from them, such as the former revision's egress, has been decided before."""
    await harness.until_done()
    harness.api.edit(AGENT, NAME, lambda agent: agent["spec"].update(replicas=2))
    await harness.observe()
    queued(harness)
    harness.api.edit(DEPLOYMENT, NAME, lambda one: one["status"].update(availableReplicas=0))
    await harness.reconciler.reconcile(NAME)
    assert queued(harness) == {KEY}
