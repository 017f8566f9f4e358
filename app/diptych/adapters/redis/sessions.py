"""The conversations in Redis: what each ended run said, one element of a list.

Not here: how it comes there (`ownership.finish_run`, in the step that takes the run off the queue).
"""

from collections.abc import Sequence

from diptych.adapters.redis import scripts
from diptych.adapters.redis.encoding import read_said
from diptych.adapters.redis.store_part import Part
from diptych.errors import SessionBusy
from diptych.loop.messages import Message
from diptych.ports.entries import SessionEntry

_AT_ONCE = 500


class SessionsPart(Part):
    """Fulfils `ports.Sessions`."""

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        [said] = await self._link.ask(("LRANGE", self._key("said", session_id), 0, -1))
        return tuple(message for packed in said for message in read_said(packed))

    async def session_exists(self, session_id: str) -> bool:
        [there] = await self._link.ask(("EXISTS", self._key("session", session_id)))
        return bool(there)

    async def sessions(self) -> Sequence[SessionEntry]:
        [names] = await self._link.ask(("ZRANGE", f"{self._settings.prefix}:sessions", 0, -1))
        entries: list[SessionEntry] = []
        for start in range(0, len(names), _AT_ONCE):
            found = await self._link.run(scripts.SESSIONS, *names[start : start + _AT_ONCE])
            for i in range(0, len(found), 5):
                name, runs, events, created, updated = found[i : i + 5]
                entries.append(
                    SessionEntry(
                        name.decode(), int(runs), int(events or 0), float(created), float(updated)
                    )
                )
        return sorted(entries, key=lambda entry: entry.created)

    async def delete(self, session_id: str) -> bool:
        found = await self._link.run(scripts.DELETE, session_id)
        if found == b"busy":
            raise SessionBusy
        return bool(found == b"deleted")
