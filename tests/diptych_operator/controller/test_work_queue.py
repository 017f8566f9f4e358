"""The work queue."""

import asyncio

import pytest

from diptych_operator.controller.work_queue import FIRST_DELAY, MAX_DELAY, WorkQueue

A, B = ("team", "a"), ("team", "b")


@pytest.fixture
async def queue():
    queue = WorkQueue()
    queue.start()
    yield queue
    queue.shut_down()


async def test_an_agent_is_queued_once(queue):
    for name in (A, B, A):
        queue.add(name)
    assert [await queue.get(), await queue.get()] == [A, B]
    assert len(queue) == 0


async def test_nothing_is_taken_before_the_start():
    queue = WorkQueue()
    queue.add(A)
    taking = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not taking.done()
    queue.start()
    assert await taking == A


async def test_an_agent_that_changes_while_it_is_processed_is_queued_once_more(queue):
    queue.add(A)
    await queue.get()
    queue.add(A)
    queue.add(A)
    assert len(queue) == 0
    queue.done(A)
    assert await queue.get() == A
    queue.done(A)
    assert len(queue) == 0


async def test_failures_back_off_exponentially(queue):
    delays = []
    for _ in range(10):
        queue.add(A)
        await queue.get()
        delays.append(queue.retry(A))
    assert delays[:3] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert delays[-1] == MAX_DELAY


async def test_success_forgets_the_failures(queue):
    queue.add(A)
    await queue.get()
    queue.retry(A)
    queue.add(A)
    await queue.get()
    queue.done(A)
    queue.add(A)
    await queue.get()
    assert queue.retry(A) == FIRST_DELAY


async def test_of_two_delays_the_sooner_one_counts(queue):
    queue.add_after(A, 60)
    queue.add_after(A, 0.01)
    queue.add_after(A, 60)
    assert await asyncio.wait_for(queue.get(), 1) == A
