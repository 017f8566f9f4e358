"""An SQLite file that one process has open, and the thread in which all of its steps run.

A commit is on the disk when it returns (WAL, `synchronous=FULL`), so neither `kill -9` nor a power
cut loses it, if the disk keeps what it says that it has written.
"""

import asyncio
import functools
import shutil
import sqlite3
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from diptych.core.errors import ConfigError, StoreError, StoreFull

VERSION = 1  # of the tables
HELD_SECONDS = 1.0  # for which a process waits for another one to close the file
RESERVE_BYTES = 4 * 2**20  # of the disk, which only the ends of runs may use
_SCHEMA = """
CREATE TABLE meta (epoch TEXT NOT NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    events INTEGER NOT NULL DEFAULT 0,  -- that /memory/events shows
    owner TEXT                          -- the token of its lease; NULL: nobody has it
);
CREATE INDEX sessions_by_use ON sessions (updated);
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which they were opened
    id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    updated_ms INTEGER NOT NULL,
    status TEXT NOT NULL,
    seq INTEGER NOT NULL,
    is_queued INTEGER NOT NULL DEFAULT 1,  -- until it is finished
    due REAL,                              -- when its caller's deadline passes
    deaths INTEGER NOT NULL DEFAULT 0,     -- of processes, during its turn
    blob TEXT,
    said BLOB                              -- the messages that it adds to the conversation
);
CREATE INDEX runs_of_session ON runs (session, number);
CREATE INDEX runs_by_status ON runs (status, updated_ms, id);
CREATE INDEX runs_of_blob ON runs (blob);
CREATE INDEX queue ON runs (session, number) WHERE is_queued;
CREATE TABLE records (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE TABLE signals (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    signal BLOB NOT NULL,
    UNIQUE (run, signal)
);
CREATE TABLE pushes (
    run INTEGER NOT NULL,
    id TEXT NOT NULL,
    config BLOB NOT NULL,
    seq INTEGER NOT NULL,
    due REAL,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;
CREATE INDEX due_pushes ON pushes (due) WHERE due IS NOT NULL;
CREATE TABLE blobs (key TEXT PRIMARY KEY, blob BLOB NOT NULL);
CREATE TABLE idempotency_keys (
    key TEXT PRIMARY KEY, digest TEXT NOT NULL, run TEXT NOT NULL, at REAL NOT NULL
);
CREATE TABLE accounts (key TEXT PRIMARY KEY, until REAL NOT NULL, state BLOB NOT NULL);
CREATE TABLE vault (key TEXT PRIMARY KEY, until REAL NOT NULL, value BLOB NOT NULL);
CREATE TABLE counted (key TEXT PRIMARY KEY, until REAL NOT NULL);  -- entries and runs of the ledger
"""
T = TypeVar("T")
P = ParamSpec("P")
Step = Callable[Concatenate[sqlite3.Connection, P], T]


class StoreNotOpened(ConfigError):
    """Another process has the file open, or this one may not write it."""


class Damaged(Exception):
    """A step has read what cannot be decoded."""


class Database:
    """The file at `path`, which is made if it is missing, with its folder.

    `executor` runs the steps, one after another. Raises `StoreNotOpened`, and `ConfigError` for a
    file that is damaged or a newer version's.
    """

    def __init__(self, path: Path, epoch: str, executor: Executor | None = None) -> None:
        self.path = path
        self._problem = ""  # of the last step
        self._full_since: float | None = None
        self._is_closed = False
        self.connection = _open(path, epoch)
        [(stored,)] = self.connection.execute("SELECT epoch FROM meta")
        self.epoch = str(stored)
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._key = path.resolve()
        _OPEN[self._key] = self

    async def run(self, step: Step[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take a step as one transaction, also if the caller is cancelled meanwhile.

        Raises `StoreError`, `StoreFull`, and what the step raises: then it has changed nothing.
        """
        return await asyncio.shield(self.submit(step, *args, **kwargs))

    def submit(self, step: Step[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Take a step after all that were submitted before."""
        if self._is_closed:
            raise StoreError("the store is closed")
        return self._execute(lambda: self._transact(lambda: step(self.connection, *args, **kwargs)))

    async def aclose(self, last_step: Step[[], None]) -> None:
        """Take the last step, and close the file."""
        if self._is_closed:
            return
        ending = self.submit(last_step)  # where it fails, the next process sees a death
        self._is_closed = True
        closing = self._execute(self.connection.close)
        self._executor.shutdown(wait=False)
        await asyncio.gather(ending, closing, return_exceptions=True)
        if _OPEN.get(self._key) is self:
            del _OPEN[self._key]

    def _execute(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, work)
        except RuntimeError:  # at the end of the process, executors take nothing new
            self._executor.shutdown()  # after all that was submitted before
        done: asyncio.Future[T] = loop.create_future()
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)
        return done

    def check_room(self) -> None:
        """Raise `StoreFull` if the disk has no more room than the ends of runs may need."""
        if not self._has_room():
            raise self._full()

    def unavailable_reason(self) -> str:
        """Return why the file cannot be used now, and what to do; empty if it can."""
        return self._problem

    def full_reason(self) -> str:
        """Return since when the disk is full; empty while there is room for new runs."""
        if self._full_since is not None and self._has_room():
            self._full_since = None
        if self._full_since is None:
            return ""
        since = datetime.fromtimestamp(self._full_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"full since {since}: the disk of {self.path} has no room; free some"

    def _has_room(self) -> bool:
        try:
            return shutil.disk_usage(self.path.parent).free >= RESERVE_BYTES
        except OSError:  # the next write says what is wrong
            return True

    def _transact(self, step: Callable[[], T]) -> T:
        try:
            self.connection.execute("BEGIN")
            try:
                result = step()
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._store_error(error) from error
        except Damaged as error:
            raise self._damaged(str(error)) from error
        self._problem = ""
        return result

    def _store_error(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL:
            return self._full()
        if code in _DAMAGED:
            return self._damaged(str(error))
        self._problem = f"{self.path} cannot be used: {error}"
        return StoreError(self._problem)

    def _full(self) -> StoreFull:
        self._full_since = self._full_since or time.time()
        return StoreFull(f"the disk of {self.path} is full; free some of it, and try again")

    def _damaged(self, what: str) -> StoreError:
        self._problem = damaged(self.path, what)
        return StoreError(self._problem)


class _OfDatabase(Protocol):
    _database: Database


S = TypeVar("S", bound=_OfDatabase)


def step(
    method: Callable[Concatenate[S, sqlite3.Connection, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make an async method of one that gets the connection: `Database.run` takes it as a step."""

    @functools.wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.run(functools.partial(method, self), *args, **kwargs)

    return run


_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def damaged(path: Path, what: str) -> str:
    """Say that a file is damaged, and what to do."""
    return (
        f"{path} is damaged ({what}): stop the agent and move the file away to start anew; "
        "`sqlite3 FILE .recover` may read what is left"
    )


_OPEN: WeakValueDictionary[Path, Database] = WeakValueDictionary()
"""The files that this process has open."""


def _open(path: Path, epoch: str) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreNotOpened(f"{path.parent} cannot be made: {error.strerror}") from error
    with suppress(OSError):  # of a folder that may not be written: SQLite says so, too
        path.touch(mode=0o600, exist_ok=False)
    connection = None
    try:
        connection = sqlite3.connect(
            path, timeout=HELD_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        _make_tables(connection, path, epoch)
        connection.execute("COMMIT")
    except (sqlite3.Error, ConfigError) as error:
        if connection:
            connection.close()
        if isinstance(error, ConfigError):
            raise
        raise _opening_error(path, error) from error
    return connection


def _make_tables(connection: sqlite3.Connection, path: Path, epoch: str) -> None:
    [(version,)] = connection.execute("PRAGMA user_version")
    if version > VERSION:
        raise ConfigError(f"{path} was written by a newer version of diptych; use that one")
    if version < VERSION:
        for statement in _SCHEMA.split(";\n"):
            connection.execute(statement)
        connection.execute("INSERT INTO meta VALUES (?)", (epoch,))
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _opening_error(path: Path, error: sqlite3.Error) -> ConfigError:
    code = _code(error)
    if code == sqlite3.SQLITE_BUSY and path.resolve() in _OPEN:
        return StoreNotOpened(
            f"{path} is in use by another agent object of this process: use that one, or close it "
            "first, by close() after run_sync and by aclose() in its event loop"
        )
    if code == sqlite3.SQLITE_BUSY:
        return StoreNotOpened(f"{path} is in use by another process")
    if code in _DAMAGED:
        return ConfigError(damaged(path, str(error)))
    return StoreNotOpened(f"{path} cannot be opened for writing: {error}")


def _code(error: sqlite3.Error) -> int:
    """Return the primary error code; 0 if SQLite gave none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
