"""Secrets in the memory of this process."""

from collections.abc import Callable
from time import monotonic


class MemoryVault:
    """Implements `ports.stores.Vault`."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._values: dict[str, tuple[float, bytes]] = {}  # each with its end

    async def get(self, key: str) -> bytes | None:
        until, value = self._values.get(key, (0.0, None))
        return value if self._now() < until else None

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        now = self._now()
        self._values = {k: kept for k, kept in self._values.items() if now < kept[0]}
        self._values[key] = now + seconds, value

    async def take(self, key: str) -> bytes | None:
        value = await self.get(key)
        self._values.pop(key, None)
        return value
