"""The push notifications that callers want, in Redis (`scripts/pushes.lua`)."""

from collections.abc import Sequence

from diptych.ports.entries import Push
from diptych.stores.redis.client import StoreClient
from diptych.stores.redis.scripts import PUSHES, PUSHES_WHEN_FULL

_MAX_DUE = 100  # in one reply


class RedisPushes(StoreClient):
    """Implements `ports.Pushes`."""

    async def put_push(self, push: Push, seconds: float | None) -> None:
        text = b"%d %b" % (push.seq, push.config)
        if not await self._connection.run(
            PUSHES, "put", push.run_id, push.config_id, text, _ms(seconds)
        ):
            raise await self._missing_run(push.run_id)

    async def pushes(self, run_id: str) -> Sequence[Push]:
        [found] = await self._connection.execute(("HGETALL", self._key("pushes", run_id)))
        return [_push(run_id.encode(), *pair) for pair in sorted(found.items())]

    async def delete_push(self, run_id: str, config_id: str) -> None:
        await self._connection.run(PUSHES_WHEN_FULL, "delete", run_id, config_id)

    async def take_due_pushes(self, seconds: float) -> Sequence[Push]:
        found = await self._connection.run(PUSHES_WHEN_FULL, "take", _ms(seconds), _MAX_DUE)
        return [_push(*row) for row in found]

    async def advance_push(self, push: Push, seconds: float | None) -> bytes | None:
        text = await self._connection.run(
            PUSHES_WHEN_FULL, "advance", push.run_id, push.config_id, push.seq, _ms(seconds)
        )
        return bytes(text.partition(b" ")[2]) if text else None


def _ms(seconds: float | None) -> int | str:
    return "" if seconds is None else int(seconds * 1000)


def _push(run_id: bytes, config_id: bytes, text: bytes) -> Push:
    seq, _, config = text.partition(b" ")
    return Push(run_id.decode(), config_id.decode(), config, int(seq))
