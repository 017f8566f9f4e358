"""Deletes all data of an agent, after its Agent was deleted."""

import asyncio

from redis.asyncio import Redis

from diptych.core.errors import StoreError
from diptych.ports import ValueProvider
from diptych.stores.redis.server import unreachable
from diptych.stores.redis.settings import read_url

_KEYS_PER_SCAN = 1_000
_LOOK_SECONDS = 1.0


async def purge(url: ValueProvider, prefix: str, *, patience: float) -> int:
    """Delete every key of an agent; return how many there were.

    First waits for the agent's processes to end, for `patience` seconds at most. Keys of other
    Agents below `<prefix>:agent:` stay. Raises `StoreError` if the store is unreachable, possibly
    after deleting some keys.
    """
    try:
        async with read_url(url() or "").client() as client:
            await _wait_for_processes(client, prefix, patience)
            return await _delete_all(client, prefix)
    except Exception as error:
        raise StoreError(f"the sessions cannot be purged: {unreachable(error)}") from error


async def _wait_for_processes(client: Redis, prefix: str, patience: float) -> None:
    """Wait until no process of the agent is subscribed to its control channel.

    A draining process would recreate deleted keys.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while loop.time() < deadline:
        [(_, count)] = await client.pubsub_numsub(f"{prefix}:control")
        if not count:
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _delete_all(client: Redis, prefix: str) -> int:
    others, deleted = f"{prefix}:agent:".encode(), 0
    async for key in client.scan_iter(f"{prefix}:*", _KEYS_PER_SCAN):
        if not key.startswith(others):
            deleted += await client.unlink(key)
    return deleted
