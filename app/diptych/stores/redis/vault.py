"""Secrets in Redis, for all replicas; the caller has encrypted them."""

from diptych.stores.redis.connection import RedisConnection


class RedisVault:
    """Implements `ports.stores.Vault`."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    async def get(self, key: str) -> bytes | None:
        return await self._ask("GET", key)

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        await self._connection.execute(
            ("SET", self._name(key), value, "PX", max(1, round(seconds * 1000)))
        )

    async def take(self, key: str) -> bytes | None:
        return await self._ask("GETDEL", key)

    async def _ask(self, command: str, key: str) -> bytes | None:
        found: bytes | None
        [found] = await self._connection.execute((command, self._name(key)))
        return found

    def _name(self, key: str) -> str:
        return f"{self._connection.prefix}:vault:{key}"
