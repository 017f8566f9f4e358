"""Several operators that watch the same namespace: one serves it, and both say so."""

import logging

import pytest
from support.agents import agent_object
from support.kubernetes import ErrorResponse
from support.reconciler_harness import KEY, NAME, NOW, Harness, served

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import (
    PERIOD,
    STANDING_BACK,
    VERSION,
    NamespaceClaims,
    OperatorName,
)
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import AGENT, CLAIM_NAME, DEPLOYMENT, EVENT, LEASE
from diptych_operator.status.events import claim_event

CLAIM = ("team", CLAIM_NAME)
OLD, NEW = OperatorName("a/diptych", "0.1.0"), OperatorName("b/diptych", "0.2.0")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def operator_of(api, client, name, clock):
    cache, queue = ObjectCache(), WorkQueue()
    numbers = iter(range(100))

    def report(lease, sentence):
        return claim_event(lease, sentence, NOW, f"{name.version}-{next(numbers)}")

    held = NamespaceClaims(client, cache, queue, name, report)
    held.clock = clock
    return Harness(api, client, cache, queue, held)


@pytest.fixture
async def pair():
    """Two operators over one API, and their clock."""
    async with served() as alone:
        alone.api.put(AGENT, agent_object())
        clock = Clock()
        yield tuple(operator_of(alone.api, alone.client, name, clock) for name in (OLD, NEW)), clock


def holder(api):
    return api.get(LEASE, CLAIM)["spec"].get("holderIdentity")


async def test_the_first_one_serves_and_the_second_stands_back(pair, caplog):
    (old, new), _ = pair
    await old.reconcile()
    before = old.api.get(DEPLOYMENT, NAME)
    old.api.writes.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await new.reconcile() is None
    assert [path.split("/")[-2] for _, path, _ in old.api.writes] == ["team", "leases"]
    assert old.api.get(DEPLOYMENT, NAME) == before
    assert holder(old.api) == "a/diptych"
    assert caplog.messages == [
        (
            "operator a/diptych 0.1.0 serves namespace team; operator b/diptych 0.2.0 watches it, "
            "too, and stands back; let only one of them watch it"
        )
    ]
    [event] = old.api.all(EVENT)
    assert (event["type"], event["reason"]) == ("Warning", "StandsBack")
    assert event["regarding"]["name"] == CLAIM_NAME
    assert "operator b/diptych 0.2.0 watches it, too, and stands back" in event["note"]


async def test_the_one_that_serves_learns_of_the_other_and_says_so_once(pair, caplog):
    (old, new), clock = pair
    await old.reconcile()
    await new.reconcile()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now += PERIOD
            await old.claims.renew()
    assert caplog.messages == [
        (
            "operator a/diptych 0.1.0 serves namespace team; operator b/diptych 0.2.0 has watched "
            "it, too, and stood back; let only one of them watch it"
        )
    ]
    annotations = old.api.get(LEASE, CLAIM)["metadata"]["annotations"]
    assert annotations == {VERSION: "0.1.0", STANDING_BACK: "b/diptych 0.2.0"}


async def test_a_claim_outlives_two_missed_renewals_and_then_another_operator_takes_over(pair):
    (old, new), clock = pair
    await old.reconcile()
    await new.reconcile()
    for _ in range(3):
        clock.now += PERIOD
        await new.claims.renew()
    assert holder(old.api) == "a/diptych"
    assert not old.claims.holds("team")  # it has stopped before another one may start
    clock.now += PERIOD
    await new.claims.renew()
    assert holder(old.api) == "b/diptych"
    assert new.claims.holds("team")
    assert len(new.queue) == 1  # its Agents are reconciled at once
    await old.claims.renew()
    assert not old.claims.holds("team")
    assert await old.reconcile() is None


async def test_whoever_was_turned_away_is_queued_when_the_event_of_another_agent_claims(pair):
    (old, new), clock = pair
    await old.reconcile()
    old.api.put(AGENT, agent_object("second"))
    await new.reconcile()
    clock.now += 10 * PERIOD  # the old operator is gone, and its claim has expired
    assert len(new.queue) == 0
    await new.reconcile(("team", "second"))
    assert new.claims.holds("team")
    new.queue.start()
    assert KEY in [await new.queue.get() for _ in range(len(new.queue))]


async def test_a_lease_that_changes_under_the_hand_is_not_lost(pair, caplog):
    (old, _), clock = pair
    await old.reconcile()
    clock.now += PERIOD

    def before(request, content):
        if request.method == "PUT":
            raise ErrorResponse(409, "the object has been modified")

    old.api.before = before
    with caplog.at_level(logging.WARNING):
        await old.claims.renew()
    assert old.claims.holds("team")
    assert caplog.messages == []
    old.api.before = lambda *_: None
    before_that = old.api.get(LEASE, CLAIM)["spec"]["renewTime"]
    await old.claims.renew()
    assert old.api.get(LEASE, CLAIM)["spec"]["renewTime"] > before_that


async def test_another_replica_of_the_same_operator_goes_on_at_once(pair):
    (old, _), clock = pair
    await old.reconcile()
    again = operator_of(old.api, old.client, OLD, clock)
    await again.reconcile()
    assert again.claims.holds("team")


async def test_a_namespace_without_agents_is_given_up(pair):
    (old, _), _ = pair
    await old.reconcile()
    old.api.remove(AGENT, NAME)
    await old.reconcile()
    await old.claims.renew()
    assert old.api.get(LEASE, CLAIM) is None


async def test_a_missing_right_to_claim_is_logged_once_and_stops_nothing(pair, caplog):
    (old, _), clock = pair

    def before(request, content):
        if "leases" in request.path:
            raise ErrorResponse(403, 'leases is forbidden: User "x" cannot get resource "leases"')

    old.api.before = before
    with caplog.at_level(logging.WARNING):
        await old.reconcile()
        clock.now += PERIOD
        await old.claims.renew()
    assert old.api.get(DEPLOYMENT, NAME)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("namespace team is served without a claim: leases is")


async def test_without_an_answer_nothing_is_written(pair):
    (old, _), _ = pair

    def before(request, content):
        if "leases" in request.path:
            raise ErrorResponse(503, "away")

    old.api.before = before
    with pytest.raises(ApiError):
        await old.reconcile()
    assert old.api.get(DEPLOYMENT, NAME) is None
    old.api.before = lambda *_: None
    await old.reconcile()
    assert old.api.get(DEPLOYMENT, NAME)
