"""Lists in a store that replicas of version 0.1 share: nothing of theirs is missing in them.

Those replicas know nothing of the lists. Their scripts are in `tests/recorded/redis-v0.1`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.redis_server import RedisServer, redis_server
from support.redis_stores import end, first, record, stores

from diptych.adapters.redis import RedisStore, scripts
from diptych.loop.codec import TERMINAL
from diptych.ports.entries import Opened

_SCRIPTS = Path(__file__).parents[2] / "recorded" / "redis-v0.1"
_NAMES = {
    "OPEN": "open",
    "FINISH_RUN": "conclude",
    "NEXT_RUN": "head",
    "UNOWNED_SESSIONS": "unowned",
    "DELETE_SESSION": "delete",
}
EVERY_STATUS = ("queued", "running", *TERMINAL)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@contextmanager
def earlier_version() -> Iterator[None]:
    """Have stores do as replicas of version 0.1 do."""
    with pytest.MonkeyPatch.context() as patch:
        for name, file in _NAMES.items():
            source = (_SCRIPTS / f"{file}.lua").read_bytes()
            sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
            patch.setattr(scripts, name, scripts.Script(source, sha))
        yield


async def opened(store: RedisStore, *session_ids: str) -> list[Opened]:
    return [await store.open(first(store, name), f"token {name}") for name in session_ids]


async def finish(store: RedisStore, runs: Sequence[Opened]) -> None:
    for each in runs:
        assert each.lease
        await end(store, each.entry, each.lease)


async def assert_lists(store: RedisStore, runs: Sequence[Opened]) -> None:
    """Every list must have these runs, of which each shows one event."""
    ids = [each.entry.run_id for each in runs]
    assert [entry.run_id for entry in await store.entries()] == ids[::-1]
    assert [entry.run_id for entry in await store.entries(limit=2)] == ids[::-1][:2]
    page = await store.updated_entries(EVERY_STATUS, 100)
    assert {entry.run_id for entry in page.entries} == set(ids)
    assert page.total == len(ids)
    assert await store.count_events() == len(ids)
    names = {each.entry.session_id for each in runs}
    assert {entry.session_id for entry in await store.sessions()} == names
    assert await store.count_sessions() == len(names)


@pytest.mark.parametrize("reads_first", [True, False])
async def test_runs_of_the_earlier_version_are_listed(server, reads_first):
    async with stores(server.url) as [store]:
        if reads_first:
            await assert_lists(store, [])
        with earlier_version():
            runs = await opened(store, *"abcde")
            await finish(store, runs[:3])
        await assert_lists(store, runs)
        await finish(store, runs[3:4])
        await assert_lists(store, runs)


async def test_the_lists_are_completed_once_and_then_only_read(server):
    async with stores(server.url) as [store]:
        with earlier_version():
            runs = await opened(store, *"abcde")
            await finish(store, runs)
        await assert_lists(store, runs)
        server.ask("CONFIG", "RESETSTAT")
        await assert_lists(store, runs)
        assert server.calls().get("zadd", 0) == 0


async def test_both_versions_open_runs_in_turn(server):
    async with stores(server.url) as [store]:
        runs: list[Opened] = []
        for turn in range(4):
            runs += await opened(store, f"new {turn}")
            with earlier_version():
                runs += await opened(store, f"old {turn}")
            await assert_lists(store, runs)
        await finish(store, runs)
        await assert_lists(store, runs)


async def test_one_version_finishes_what_the_other_opened(server):
    async with stores(server.url) as [store]:
        mine = await opened(store, "a", "b")
        with earlier_version():
            theirs = await opened(store, "c", "d")
            await finish(store, mine)
        await assert_lists(store, [*mine, *theirs])
        await finish(store, theirs)
        await assert_lists(store, [*mine, *theirs])


async def test_a_run_of_the_earlier_version_that_opens_and_ends_between_two_reads_is_listed(server):
    async with stores(server.url) as [store]:
        runs = await opened(store, "a", "b")
        await finish(store, runs)
        await assert_lists(store, runs)
        with earlier_version():
            more = await opened(store, "a")  # the same session: no list has another size
            await finish(store, more)
        await assert_lists(store, [*runs, *more])


async def test_what_the_earlier_version_deletes_is_listed_no_more(server):
    async with stores(server.url) as [store]:
        runs = await opened(store, "a", "b", "c")
        await finish(store, runs)
        await assert_lists(store, runs)
        with earlier_version():
            await store.delete("b")
            assert list(await store.unowned_sessions()) == []
        await assert_lists(store, [runs[0], runs[2]])


async def test_a_session_deleted_for_one_finished_by_the_earlier_version_is_counted_no_more(server):
    async with stores(server.url) as [store]:
        [gone] = await opened(store, "gone")
        assert gone.lease
        answer = [record(gone.entry, 2, "agent_response"), record(gone.entry, 3, "completed")]
        await store.append(answer, gone.lease)
        await store.finish_run(gone.entry.run_id, (), gone.lease)
        left = await opened(store, "left")
        with earlier_version():
            await finish(store, left)
            await store.delete("gone")  # so that the sizes of the lists add up
        await store.unowned_sessions()
        assert await store.count_events() == 1
        await assert_lists(store, left)


async def test_an_expired_run_is_removed_from_the_lists(server):
    async with stores(server.url, retention=60) as [store]:
        runs = await opened(store, *"abc")
        await finish(store, runs)
        prefix = store._settings.prefix
        gone = runs.pop(1)
        for key in (f"log:{gone.entry.run_id}", "session:b", "runs:b", "said:b", "fence:b"):
            server.ask("UNLINK", f"{prefix}:{key}")  # as if it had expired
        server.ask("ZADD", f"{prefix}:sessions", 1, "b")
        await store.unowned_sessions()
        for key in ("index", "ended:completed", "sessions"):
            assert server.ask("ZCARD", f"{prefix}:{key}") == 2
        await assert_lists(store, runs)


async def test_pages_are_whole_although_runs_have_expired(server):
    async with stores(server.url) as [store]:
        runs = await opened(store, *(str(number) for number in range(12)))
        await finish(store, runs)
        for gone in runs[4:]:
            server.ask("UNLINK", f"{store._settings.prefix}:log:{gone.entry.run_id}")
        left = {each.entry.run_id for each in runs[:4]}
        page = await store.updated_entries(EVERY_STATUS, 3)
        assert len(page.entries) == 3
        assert {entry.run_id for entry in page.entries} <= left
        assert page.total >= 4
        entries = await store.entries(limit=3)
        assert [entry.run_id for entry in entries] == [r.entry.run_id for r in runs[3:0:-1]]


async def test_a_list_costs_as_many_commands_with_many_sessions_as_with_few(server):
    async with stores(server.url) as [store]:
        costs = []
        for start, stop in ((0, 5), (5, 305)):
            names = [str(number) for number in range(start, stop)]
            await finish(store, await opened(store, *names))
            server.ask("CONFIG", "RESETSTAT")
            await store.entries(limit=1)
            await store.updated_entries(EVERY_STATUS, 1)
            await store.sessions(1)
            await store.count_events()
            calls = server.calls()
            calls.pop("ping", None)
            costs.append(sum(calls.values()))
        assert costs[1] <= costs[0] + 5  # a health check may come between


def test_the_scripts_know_every_status_with_which_a_run_ends():
    for status in TERMINAL:
        assert f"'{status}'".encode() in scripts.LIST_RUNS.source


async def test_a_counted_run_is_not_counted_again_when_its_end_is_sent_again(server):
    async with stores(server.url) as [store]:
        [run] = await opened(store, "a")
        assert run.lease
        await end(store, run.entry, run.lease)
        await store.append([record(run.entry, 2, "completed")], run.lease)
        await store.finish_run(run.entry.run_id, (), run.lease)
        await assert_lists(store, [run])
