"""The conversations of sessions in Redis."""

import asyncio
import logging

from diptych.core.errors import SessionBusy
from diptych.core.messages import Message
from diptych.net.backoff import Backoff
from diptych.stores.redis import scripts
from diptych.stores.redis.encoding import decode_messages
from diptych.stores.redis.lists import RedisLists

_ENDING_SECONDS = 1.0  # for which the owner of a run that has ended may count it
_FIRST_LOOK, _LONGEST_LOOK = 0.005, 0.1  # seconds
_logger = logging.getLogger(__name__)


class RedisSessions(RedisLists):
    """Fulfils `ports.event_log.Sessions`."""

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        [encoded] = await self._connection.execute(("LRANGE", self._key("said", session_id), 0, -1))
        said: list[Message] = []
        unreadable = 0
        for each in encoded:
            try:
                said += decode_messages(b"[" + each.partition(b"[")[2])  # the run's id is before it
            except ValueError:
                unreadable += 1
        if unreadable:
            _logger.warning(
                "session %s: %d rows of its conversation are not ours, and are left out",
                session_id,
                unreadable,
            )
        return tuple(said)

    async def session_exists(self, session_id: str) -> bool:
        [exists] = await self._connection.execute(("EXISTS", self._key("session", session_id)))
        return bool(exists)

    async def delete(self, session_id: str) -> bool:
        return await self._delete(session_id)

    async def delete_run(self, session_id: str, run_id: str, shown: int) -> bool:
        return await self._delete(session_id, run_id, shown)

    async def _delete(self, *what: str | int) -> bool:
        backoff = Backoff(_FIRST_LOOK, _LONGEST_LOOK, budget=_ENDING_SECONDS)
        while True:
            reply = await self._connection.run_script(scripts.DELETE_SESSION, *what)
            if reply != b"ending" or backoff.is_exhausted:
                break
            await asyncio.sleep(backoff.next_delay())
        if reply in {b"busy", b"ending"}:
            raise SessionBusy
        return bool(reply == b"deleted")
