"""The lease of a task on its caller, who may be subscribed at another replica than the owner's."""

import asyncio

import pytest
from support.replicas import replica
from support.shared_store import SharedStore
from support.stories import TAKEN_UP, begin, log, virtually

from diptych.core.events import Origin

LEASE = 60.0
HOURS = {"content": "{}", "delay_ms": 10_000_000}


async def attend(at, run_id, seconds):
    """Say every 10 s, at a replica, that somebody waits."""

    async def say():
        at.runs.attend(run_id)

    for _ in range(int(seconds / 10)):
        await at.run(say())
        await asyncio.sleep(10)


def end(store, run_id):
    return log(store, run_id)[-1]


@virtually
async def test_who_waits_at_another_replica_keeps_a_task_going_and_not_for_longer():
    store = SharedStore()
    owner, other = (replica(store, name, HOURS) for name in "ab")
    run_id = await begin(owner, origin=Origin(lease=LEASE))
    await attend(other, run_id, 5 * LEASE)
    assert end(store, run_id).event_type != "aborted"
    await asyncio.sleep(LEASE + LEASE / 4 + 1)
    assert end(store, run_id).event_type == "aborted"
    assert "is gone" in end(store, run_id).content


@pytest.mark.parametrize("is_attended", [True, False])
@virtually
async def test_a_new_owner_counts_anew_and_hears_who_waits_elsewhere(is_attended):
    store = SharedStore()
    owner, heir, third = (replica(store, name, HOURS) for name in "abc")
    run_id = await begin(owner, origin=Origin(lease=LEASE))
    await asyncio.sleep(LEASE - TAKEN_UP)
    owner.kill()
    if is_attended:
        await attend(third, run_id, 4 * LEASE)
        assert "owner_changed" in [r.event_type for r in log(store, run_id)]
        assert end(store, run_id).event_type != "aborted"
    await asyncio.sleep(TAKEN_UP + LEASE + LEASE / 4 + 1)
    assert end(store, run_id).event_type == "aborted"
    assert [r.event_type for r in log(store, run_id)].count("aborted") == 1
    await heir.runs.close()


@virtually
async def test_an_outage_of_the_store_does_not_end_a_task_that_somebody_waits_for():
    store = SharedStore()
    owner, other = (replica(store, name, HOURS) for name in "ab")
    run_id = await begin(owner, origin=Origin(lease=LEASE))
    await attend(other, run_id, 30)
    store.go_away(LEASE + 10)
    await attend(other, run_id, 4 * LEASE)
    assert end(store, run_id).event_type == "offered"
    await asyncio.sleep(2 * LEASE)
    assert end(store, run_id).event_type == "aborted"
