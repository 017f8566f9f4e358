"""The lists of runs and sessions: pages of them, and how many there are.

What a page costs depends on its size, not on what is stored (`scripts/lists.lua`).
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from diptych.core.errors import RunNotFound
from diptych.ports.entries import RunEntry, RunPage, SessionEntry
from diptych.stores.redis import scripts
from diptych.stores.redis.client import StoreClient
from diptych.stores.redis.pipeline import Reply
from diptych.stores.redis.write_buffer import Argument

_SESSIONS_PER_SCRIPT = 100  # lest one script holds Redis up; so, too, the next
_MAX_RUNS_PER_REPLY = 1_000
_MAX_EXPIRED_PAGES = 100  # that are removed before a page is given that is too short


class RedisLists(StoreClient):
    """What `event_log` and `sessions` inherit."""

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        if before == "":  # no run has this id, and to the script it means that there is no `before`
            raise RunNotFound
        rows: list[Sequence[Reply]] = []
        session = () if session_id is None else (session_id,)
        after = ""
        while limit is None or len(rows) < limit:
            rest = _MAX_RUNS_PER_REPLY if limit is None else limit - len(rows)
            count = min(rest, _MAX_RUNS_PER_REPLY)
            reply = await self._connection.run_script(
                scripts.LIST_RUNS, before or "", after, count, status or "", *session
            )
            if reply[0] == b"unknown":
                raise RunNotFound
            rows += reply[2]
            after = reply[1]
            if not after:
                break
        return self._entries(rows)

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        position: tuple[Argument, Argument] = before or ("", "")
        for _ in range(_MAX_EXPIRED_PAGES):
            total, expired, rows = await self._connection.run_script(
                scripts.LIST_UPDATED_RUNS, since, *position, limit, *statuses
            )
            if not expired:
                break
        return RunPage(self._entries(rows), total - expired)

    async def sessions(self, limit: int | None = None) -> Sequence[SessionEntry]:
        last = -1 if limit is None else limit - 1
        [names] = await self._connection.execute(
            ("ZRANGE", f"{self._settings.prefix}:sessions", 0, last, "REV")
        )
        entries: list[SessionEntry] = []
        for batch in _batches(names):
            for name, runs, events, *times in await self._connection.run_script(
                scripts.LIST_SESSIONS, *batch
            ):
                created, updated = map(float, times)
                entries.append(
                    SessionEntry(name.decode(), int(runs), int(events or 0), created, updated)
                )
        return sorted(entries, key=lambda entry: entry.created)

    async def count_sessions(self) -> int:
        sessions, _ = await self._count()
        return int(sessions)

    async def count_events(self, session_id: str | None = None) -> int:
        if session_id is None:
            _, events = await self._count()
            return int(events)
        [count] = await self._connection.execute(
            ("HGET", self._key("session", session_id), "events")
        )
        return int(count or 0)

    async def _count(self) -> Sequence[Reply]:
        reply: Sequence[Reply] = await self._connection.run_script(
            scripts.COUNT_EVENTS, self._retention_ms
        )
        return reply


def _batches(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    rest = iter(names)
    while batch := tuple(islice(rest, _SESSIONS_PER_SCRIPT)):
        yield batch
