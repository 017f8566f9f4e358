"""The conversations of sessions, and the list of sessions, in Redis.

Not here: how a run's messages are added (`leases.RedisLeases.finish_run`, in the step that takes
the run out of its queue).
"""

from collections.abc import Sequence

from diptych.adapters.redis import scripts
from diptych.adapters.redis.client import StoreClient
from diptych.adapters.redis.encoding import decode_messages
from diptych.errors import SessionBusy
from diptych.loop.messages import Message
from diptych.ports.entries import SessionEntry

_SESSIONS_PER_SCRIPT = 500  # lest one script holds Redis up


class RedisSessions(StoreClient):
    """Fulfils `ports.Sessions`."""

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        [encoded] = await self._connection.execute(("LRANGE", self._key("said", session_id), 0, -1))
        return tuple(message for each in encoded for message in decode_messages(each))

    async def session_exists(self, session_id: str) -> bool:
        [exists] = await self._connection.execute(("EXISTS", self._key("session", session_id)))
        return bool(exists)

    async def sessions(self) -> Sequence[SessionEntry]:
        [names] = await self._connection.execute(
            ("ZRANGE", f"{self._settings.prefix}:sessions", 0, -1)
        )
        entries: list[SessionEntry] = []
        for start in range(0, len(names), _SESSIONS_PER_SCRIPT):
            batch = names[start : start + _SESSIONS_PER_SCRIPT]
            found = await self._connection.run_script(scripts.LIST_SESSIONS, *batch)
            for i in range(0, len(found), 5):
                name, runs, events, created, updated = found[i : i + 5]
                entries.append(
                    SessionEntry(
                        name.decode(), int(runs), int(events or 0), float(created), float(updated)
                    )
                )
        return sorted(entries, key=lambda entry: entry.created)

    async def delete(self, session_id: str) -> bool:
        reply = await self._connection.run_script(scripts.DELETE_SESSION, session_id)
        if reply == b"busy":
            raise SessionBusy
        return bool(reply == b"deleted")
