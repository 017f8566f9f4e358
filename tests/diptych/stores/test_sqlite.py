"""What SQLite adds to the contract of stores: its process dies, disks are full, files break."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.redis_stores import end, first, record, soon

from diptych.core.errors import ConfigError, StoreError, StoreFull
from diptych.core.events import Aborted, MessageQueued
from diptych.ports import Gap, Notice
from diptych.stores.sqlite import SqliteStore, StoreNotOpened
from diptych.stores.sqlite.event_log import KEPT_SECONDS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "helper.sqlite"


@asynccontextmanager
async def opened(path: Path, *, is_killed: bool = False, **rest: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **rest)
    await store.start()
    try:
        yield store
    finally:
        if is_killed:
            store._database.connection.close()
            store._database._executor.shutdown()
        else:
            await store.aclose()


async def open_run(store: SqliteStore, session_id: str = "talk", token: str = "t1") -> Any:
    return await store.open(first(store, session_id), token)


# One process


async def test_a_file_that_is_open_is_refused_and_is_free_once_it_is_closed(path: Path) -> None:
    async with opened(path):
        with pytest.raises(StoreNotOpened, match="in use by another agent object of this process"):
            SqliteStore(path)
    async with opened(path):
        pass


async def test_the_next_process_finds_what_a_dead_one_has_left(path: Path) -> None:
    async with opened(path, is_killed=True) as store:
        one, two = await open_run(store), await open_run(store, token="t2")
        epoch, records = store.epoch, await store.read(one.entry.run_id)
        await store.send_signal(two.entry.run_id, MessageQueued("more", "m1"))
    async with opened(path) as store:
        assert store.epoch == epoch
        assert await store.read(one.entry.run_id) == records
        assert await store.unowned_sessions() == ["talk"]
        head = await store.queue_head("talk")
        assert head
        assert (head.run_id, head.deaths) == (one.entry.run_id, 1)
        assert await store.pending_signals(two.entry.run_id) == [MessageQueued("more", "m1")]
        with pytest.raises(StoreError):
            await store.append([record(one.entry, 2)], one.lease)
    async with opened(path) as store:  # the one before ended in good order
        head = await store.queue_head("talk")
        assert head
        assert head.deaths == 1


async def test_what_an_opener_that_was_cancelled_has_claimed_is_released(path: Path) -> None:
    async with opened(path) as store:
        opening = asyncio.create_task(open_run(store))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await soon(lambda: bool(store._unreleased))
        assert await store.unowned_sessions() == ["talk"]


async def test_what_could_not_be_released_is_released_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as store:
        lease = (await open_run(store)).lease
        with monkeypatch.context() as patch:
            patch.setattr(store._database, "run", _broken)
            with pytest.raises(StoreError):
                await store.release(lease)
        assert await store.unowned_sessions() == ["talk"]


async def _broken(*_: Any) -> None:
    raise StoreError("the disk is gone")


# The feed


async def test_subscribers_get_records_notices_and_gaps(path: Path) -> None:
    async with opened(path) as store:
        run, items, signals = await open_run(store), list[Any](), list[Any]()
        run_id = run.entry.run_id
        unsubscribe = await store.subscribe(run_id, items.append)
        store.on_signal(lambda *signal: signals.append(signal))
        store.publish_notice(run_id, Notice("progress"))
        await store.append([record(run.entry, 2)], run.lease)
        appending = asyncio.create_task(store.append([record(run.entry, 3)], run.lease))
        await asyncio.sleep(0)
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert items == [Notice("progress"), record(run.entry, 2), Gap()]
        assert len(await store.read(run_id)) == 3, "a step that was begun is taken"
        unsubscribe()
        await store.append([record(run.entry, 4)], run.lease)
        assert len(items) == 3
        await store.send_signal(run_id, Aborted("enough"))
        await soon(lambda: signals == [("talk", run_id, Aborted("enough"))])


# Disks


async def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(path: Path) -> None:
    async with opened(path) as store:
        run = await open_run(store)
        database = store._database.connection
        [(pages,)] = database.execute("PRAGMA page_count")
        database.execute(f"PRAGMA max_page_count = {pages}")
        large = [record(run.entry, 2, content="x" * 100_000)]
        with pytest.raises(StoreFull, match=r"disk of .* is full; free some"):
            await store.append(large, run.lease)
        assert len(await store.read(run.entry.run_id)) == 1
        assert (await store.entry(run.entry.run_id)).seq == 1
        database.execute("PRAGMA max_page_count = 10000")
        await store.append(large, run.lease)
    async with opened(path) as store:
        assert len(await store.read(run.entry.run_id)) == 2


async def test_the_last_of_a_disk_is_for_the_ends_of_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as store:
        run = await open_run(store)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
            for refused in (
                open_run(store, "other"),
                store.append([record(run.entry, 2)], run.lease),
                store.put_blob("b", b"blob"),
                store.send_signal(run.entry.run_id, MessageQueued("more", "m1")),
            ):
                with pytest.raises(StoreFull):
                    await refused
            assert store.full_reason().startswith("full since 20")
            await store.send_signal(run.entry.run_id, Aborted("enough"))
            await end(store, run.entry, run.lease)
        assert not store.full_reason()
        assert not await store.session_exists("other")


def overwritten(path: Path, start: int) -> bytes:
    """Overwrite bytes of a file; return what it is then."""
    content = bytearray(path.read_bytes())
    content[start : start + 200] = b"\xff" * 200
    path.write_bytes(content)
    return bytes(content)


@pytest.mark.parametrize("place", ["its head", "a page"])
async def test_a_damaged_file_is_said_to_be_and_left_as_it_is(path: Path, place: str) -> None:
    async with opened(path) as store:
        run = await open_run(store)
        await end(store, run.entry, run.lease)
        run_id, database = run.entry.run_id, store._database.connection
        [(page,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'")
    content = overwritten(path, 0 if place == "its head" else (page - 1) * 4096)
    if place == "its head":
        with pytest.raises(ConfigError, match=r"is damaged .* move the file away"):
            SqliteStore(path)
        assert overwritten(path, 0) == content
        return
    async with opened(path) as store:
        with pytest.raises(StoreError, match=r"is damaged .* move the file away"):
            await store.read(run_id)
        assert "is damaged" in store.unavailable_reason()


async def test_a_record_that_cannot_be_decoded_is_damage(path: Path) -> None:
    async with opened(path) as store:
        run_id = (await open_run(store)).entry.run_id
        store._database.connection.execute("UPDATE records SET record = x'00'")
        with pytest.raises(StoreError, match="is damaged"):
            await store.read(run_id)


async def test_a_file_of_a_newer_version_is_left_to_that(path: Path) -> None:
    async with opened(path) as store:
        store._database.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="written by a newer version"):
        SqliteStore(path)


# How long


async def test_old_sessions_are_deleted_and_unfinished_ones_are_not(path: Path) -> None:
    now = [10.0]
    async with opened(path, now=lambda: now[0]) as store:
        for name in ("old", "unfinished"):
            await store.put_blob(name, b"blob")
            run = await open_run(store, name)
            await store.append([record(run.entry, 2, "offered", content=name)], run.lease)
            if name == "old":
                await end(store, await store.entry(run.entry.run_id), run.lease)
        now[0] += KEPT_SECONDS + 10
        await store.unowned_sessions()
        assert [entry.session_id for entry in await store.sessions()] == ["unfinished"]
    async with opened(path) as store:
        assert await store.get_blob("unfinished")
        with pytest.raises(StoreError):
            await store.get_blob("old")
