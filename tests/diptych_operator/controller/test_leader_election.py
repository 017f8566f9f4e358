"""One operator of several is active: the one that contains the Lease."""

import asyncio
from dataclasses import dataclass, field

import pytest

from diptych_operator.controller import leader_election
from diptych_operator.controller.leader_election import (
    LEASE_DURATION,
    RENEW_DEADLINE,
    Candidate,
    LeaderElection,
)
from diptych_operator.kubernetes.errors import ConflictError, NotFoundError, UnavailableError

LEASE = ("system", "diptych-operator")


@dataclass
class Leases:
    """The part of the API that keeps one Lease; `broken` makes it fail."""

    lease: dict | None = None
    version: int = 0
    broken: bool = False

    async def read(self, kind, name):
        self._check()
        if self.lease is None:
            raise NotFoundError("none")
        return {**self.lease, "metadata": dict(self.lease["metadata"])}

    async def create(self, content):
        self._check()
        if self.lease is not None:
            return False
        self._keep(content)
        return True

    async def replace(self, content):
        self._check()
        if content["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError("changed")
        self._keep(content)
        return self.lease

    def _keep(self, content):
        self.version += 1
        metadata = {**content["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**content, "metadata": metadata}

    def _check(self):
        if self.broken:
            raise UnavailableError("away")

    @property
    def holder(self):
        return self.lease["spec"].get("holderIdentity")


@dataclass
class Clock:
    now: float = 1000.0
    skews: dict = field(default_factory=dict)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def candidate(leases, identity, clock):
    return LeaderElection(leases, Candidate(LEASE, identity), clock)


async def test_the_first_candidate_acquires_the_lease_and_the_second_stands_by(clock):
    leases = Leases()
    first, second = candidate(leases, "one", clock), candidate(leases, "two", clock)
    assert await first.try_acquire_or_renew() == "one"
    assert await second.try_acquire_or_renew() == "one"
    assert leases.lease["spec"]["leaseTransitions"] == 0


async def test_the_lease_expires_when_it_has_not_changed_for_its_duration(clock):
    leases = Leases()
    first, second = candidate(leases, "one", clock), candidate(leases, "two", clock)
    await first.try_acquire_or_renew()
    await second.try_acquire_or_renew()
    clock.now += LEASE_DURATION + 1
    assert await second.try_acquire_or_renew() == "two"
    assert leases.lease["spec"]["leaseTransitions"] == 1
    assert await first.try_acquire_or_renew() == "two"


async def test_of_two_candidates_at_once_one_succeeds(clock):
    leases = Leases()
    first, second = candidate(leases, "one", clock), candidate(leases, "two", clock)
    await candidate(leases, "gone", clock).try_acquire_or_renew()
    await first.try_acquire_or_renew()
    await second.try_acquire_or_renew()
    clock.now += LEASE_DURATION + 1
    read = leases.read

    async def slow(kind, name):
        found = await read(kind, name)
        leases.read = read
        assert await first.try_acquire_or_renew() == "one"
        return found

    leases.read = slow
    assert await second.try_acquire_or_renew() == "somebody else, since just now"
    assert leases.holder == "one"


async def test_a_released_lease_can_be_acquired_at_once(clock):
    leases = Leases()
    first, second = candidate(leases, "one", clock), candidate(leases, "two", clock)
    await first.try_acquire_or_renew()
    await first.release()
    assert leases.holder is None
    assert await second.try_acquire_or_renew() == "two"


async def test_only_the_holder_releases_the_lease(clock):
    leases = Leases()
    await candidate(leases, "one", clock).try_acquire_or_renew()
    await candidate(leases, "two", clock).release()
    assert leases.holder == "one"


async def test_a_holder_that_cannot_renew_it_stops_before_another_may_begin(clock, monkeypatch):
    leases = Leases()
    first = candidate(leases, "one", clock)
    await first.try_acquire_or_renew()
    leases.broken = True

    async def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr(leader_election.asyncio, "sleep", sleep)
    began = clock.now
    await first.renew()
    assert clock.now - began == RENEW_DEADLINE < LEASE_DURATION


async def test_a_request_that_hangs_does_not_outlast_the_renew_deadline(clock, monkeypatch, caplog):
    leases = Leases()
    first = candidate(leases, "one", clock)
    await first.try_acquire_or_renew()
    monkeypatch.setattr(leader_election, "RENEW_PERIOD", 0)
    monkeypatch.setattr(leader_election, "RENEW_DEADLINE", 0.1)

    async def hang(kind, name):
        clock.now += 0.06
        await asyncio.Event().wait()

    leases.read = hang
    async with asyncio.timeout(5):
        await first.renew()
    assert caplog.messages[0] == "the Lease could not be renewed: no answer in time"


async def test_a_holder_that_has_lost_it_stops(clock, monkeypatch):
    leases = Leases()
    first = candidate(leases, "one", clock)
    await first.try_acquire_or_renew()
    leases.lease["spec"]["holderIdentity"] = "two"
    leases.version += 1
    leases.lease["metadata"]["resourceVersion"] = str(leases.version)
    monkeypatch.setattr(leader_election, "RENEW_PERIOD", 0)
    await first.renew()


async def test_acquiring_outlasts_an_unavailable_api(clock, monkeypatch):
    leases = Leases(broken=True)

    async def sleep(seconds):
        leases.broken = False

    monkeypatch.setattr(leader_election.asyncio, "sleep", sleep)
    await candidate(leases, "one", clock).acquire()
    assert leases.holder == "one"
