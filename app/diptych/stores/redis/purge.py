"""Deletes all that an agent has stored: for an Agent that was deleted (docs/decisions/0172)."""

import asyncio
from collections.abc import Sequence
from typing import Any

from diptych.core.errors import StoreError
from diptych.ports import ValueProvider
from diptych.stores.redis.locator import MasterLocator, RawConnection, unreachable

_KEYS_PER_SCAN = 1_000
_LOOK_SECONDS = 1.0


async def purge(url: ValueProvider, prefix: str, *, patience: float) -> int:
    """Delete every key of an agent; give how many there were.

    Processes of the agent may end first, and their runs with them: they are waited for, `patience`
    seconds at most. Keys of another Agent of the name, below `<prefix>:agent:`, stay. Raises
    `StoreError` if the store cannot be reached; what was deleted by then stays deleted.
    """
    try:
        connection = await MasterLocator(url).connect()
        try:
            await _wait_for_processes(connection, prefix, patience)
            return await _delete_all(connection, prefix)
        finally:
            await connection.disconnect(nowait=True)
    except Exception as error:
        raise StoreError(f"the sessions cannot be purged: {unreachable(error)}") from error


async def _wait_for_processes(connection: RawConnection, prefix: str, patience: float) -> None:
    """Wait until no process of the agent is connected: each subscribes to its signals.

    One that drains would write again what is deleted under its hand.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while loop.time() < deadline:
        _, count = await _ask(connection, "PUBSUB", "NUMSUB", f"{prefix}:control")
        if not count:
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _delete_all(connection: RawConnection, prefix: str) -> int:
    others = f"{prefix}:agent:".encode()
    cursor, deleted = "0", 0
    while True:
        found = await _ask(
            connection, "SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", str(_KEYS_PER_SCAN)
        )
        cursor, keys = found[0].decode(), [key for key in found[1] if not key.startswith(others)]
        if keys:
            deleted += await _ask(connection, "UNLINK", *_texts(keys))
        if cursor == "0":
            return deleted


def _texts(keys: Sequence[bytes]) -> list[str]:
    return [key.decode("utf-8", "surrogateescape") for key in keys]


async def _ask(connection: RawConnection, *command: str) -> Any:  # noqa: ANN401 - Redis' reply
    await connection.send_command(*command)
    return await connection.read_response(disconnect_on_error=True)
