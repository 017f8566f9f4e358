"""The time limit of a delegation, which stands still while a call below waits."""

import asyncio

import pytest
from support.stories import now, virtually

from diptych.a2a.delegation import TimeLimit


@virtually
async def test_time_that_stands_still_does_not_count():
    limit, begun = TimeLimit(), now()

    async def wait_for_a_decision():
        async with limit.within(10):
            await asyncio.sleep(4)
            limit.set_paused(True)
            await asyncio.sleep(100)
            limit.set_paused(False)
            await asyncio.sleep(100)

    with pytest.raises(TimeoutError):
        await wait_for_a_decision()
    assert now() - begun == pytest.approx(110)


@pytest.mark.parametrize("was_paused", [False, True])
@virtually
async def test_a_decision_that_is_heard_of_after_the_end_changes_nothing(was_paused):
    limit = TimeLimit()

    async def be_cancelled():
        async with limit.within(10):
            limit.set_paused(was_paused)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await be_cancelled()
    limit.set_paused(not was_paused)
