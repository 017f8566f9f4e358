"""The queue of agents that are due."""

import asyncio

import pytest

from diptych_operator.controller.work_queue import FIRST_DELAY, MAX_DELAY, Due

A, B = ("team", "a"), ("team", "b")


@pytest.fixture
async def due():
    queue = Due()
    queue.open()
    yield queue
    queue.close()


async def test_a_name_stands_in_it_once(due):
    for name in (A, B, A):
        due.add(name)
    assert [await due.take(), await due.take()] == [A, B]
    assert len(due) == 0


async def test_nothing_is_taken_before_it_is_opened():
    queue = Due()
    queue.add(A)
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not taking.done()
    queue.open()
    assert await taking == A


async def test_what_becomes_due_while_in_work_is_due_once_more(due):
    due.add(A)
    await due.take()
    due.add(A)
    due.add(A)
    assert len(due) == 0
    due.done(A)
    assert await due.take() == A
    due.done(A)
    assert len(due) == 0


async def test_what_fails_comes_back_later_and_later(due):
    delays = []
    for _ in range(10):
        due.add(A)
        await due.take()
        delays.append(due.failed(A))
    assert delays[:3] == [FIRST_DELAY, 2 * FIRST_DELAY, 4 * FIRST_DELAY]
    assert delays[-1] == MAX_DELAY


async def test_success_forgets_the_failures(due):
    due.add(A)
    await due.take()
    due.failed(A)
    due.add(A)
    await due.take()
    due.done(A)
    due.add(A)
    await due.take()
    assert due.failed(A) == FIRST_DELAY


async def test_the_api_may_ask_for_a_longer_delay(due):
    due.add(A)
    await due.take()
    assert due.failed(A, 120) == 120


async def test_a_delay_is_over_in_time_and_the_sooner_one_counts(due):
    due.add_later(A, 60)
    due.add_later(A, 0.01)
    due.add_later(A, 60)
    assert await asyncio.wait_for(due.take(), 1) == A


async def test_what_is_due_now_does_not_wait_for_its_delay(due):
    due.add_later(A, 60)
    due.add(A)
    assert await asyncio.wait_for(due.take(), 1) == A
