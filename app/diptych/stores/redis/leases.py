"""The leases of sessions in Redis. A lease expires; its fencing token does not.

Each operation is one atomic script (`scripts/leases.lua`).
"""

from collections.abc import Sequence

from diptych.core.errors import TooManyMessages
from diptych.core.events import Signal
from diptych.core.messages import Message
from diptych.ports.entries import Lease, QueueHead
from diptych.stores.encoding import (
    MOST_SIGNALS,
    decode_signal,
    dumps,
    encode_messages,
    encode_signal,
)
from diptych.stores.redis.client import StoreClient, expired_run, raise_if_refused
from diptych.stores.redis.scripts import RUNS, RUNS_WHEN_FULL

_MAX_UNOWNED = 50  # sessions in one reply
_MAX_OVERDUE, _AGAIN_MS = 100, 4_000  # runs in one reply; delay until they are returned again
_LEASES_PER_CALL = 1_000
_TOO_MANY = 2  # a reply of the script


class RedisLeases(StoreClient):
    """Implements `ports.SessionLeases`."""

    @property
    def lease_seconds(self) -> float | None:
        return self._settings.lease_seconds

    async def claim(self, session_id: str, token: str) -> Lease | None:
        is_claimed = await self._connection.run(
            RUNS_WHEN_FULL, "claim", session_id, token, self._lease_ms
        )
        return Lease(session_id, token) if is_claimed else None

    async def queue_head(self, session_id: str) -> QueueHead | None:
        reply = await self._connection.run(RUNS_WHEN_FULL, "queue_head", session_id)
        if not reply:
            return None
        run_id, size, deaths = reply
        return QueueHead(run_id.decode(), size, deaths)

    async def next_run(self, lease: Lease) -> str | None:
        reply = await self._connection.run(
            RUNS_WHEN_FULL, "next_run", lease.session_id, lease.token, self._lease_ms
        )
        raise_if_refused(reply)
        return reply[1].decode() if reply[1] else None

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        reply = await self._connection.run_when_available(
            RUNS_WHEN_FULL,
            "finish_run",
            lease.session_id,
            lease.token,
            self._lease_ms,
            run_id,
            encode_messages(said),
            self._retention_ms,
            self._blob_ms,
        )
        raise_if_refused(reply)
        return reply[1].decode() if reply[1] else None

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        lost: list[Lease] = []
        for start in range(0, len(leases), _LEASES_PER_CALL):
            some = leases[start : start + _LEASES_PER_CALL]
            pairs = [argument for lease in some for argument in (lease.session_id, lease.token)]
            numbers = await self._connection.run(
                RUNS_WHEN_FULL, "renew", self._lease_ms, self._retention_ms, self._blob_ms, *pairs
            )
            lost += [some[number] for number in numbers]
        return lost

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        message = dumps({"released": lease.session_id}) if hand_over else b""
        await self._connection.run(
            RUNS_WHEN_FULL, "release", lease.session_id, lease.token, message
        )

    async def unowned_sessions(self) -> Sequence[str]:
        names = await self._connection.run(
            RUNS_WHEN_FULL, "unowned_sessions", _MAX_UNOWNED, self._retention_ms
        )
        return [name.decode() for name in names]

    async def overdue_runs(self) -> Sequence[str]:
        names = await self._connection.run(RUNS_WHEN_FULL, "overdue_runs", _MAX_OVERDUE, _AGAIN_MS)
        return [name.decode() for name in names]

    async def send_signal(self, run_id: str, signal: Signal) -> None:
        [session_id] = await self._connection.execute(("HGET", self._key("run", run_id), "session"))
        if session_id is None:
            raise await self._missing_run(run_id)
        most = MOST_SIGNALS.get(type(signal))
        encoded = encode_signal(signal)
        reply = await self._connection.run(
            RUNS if most else RUNS_WHEN_FULL,
            "signal",
            run_id,
            encoded,
            dumps([session_id.decode(), run_id, encoded.decode()]),
            most or "",
        )
        if not reply:
            raise expired_run()
        if reply == _TOO_MANY:
            raise TooManyMessages

    def drop_signal(self, run_id: str, signal: Signal) -> None:
        self._connection.send("LREM", self._key("signals", run_id), 1, encode_signal(signal))

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        [encoded] = await self._connection.execute(("LRANGE", self._key("signals", run_id), 0, -1))
        return [signal for signal in map(decode_signal, encoded) if signal]

    async def may_be_truncated(self, run_id: str) -> bool:
        """Whether the store may have lost records that it had confirmed to a former owner.

        True if the run was last executed with another Redis server, or before a restart of this
        one, and has no new records since.
        """
        found = await self._connection.run(RUNS_WHEN_FULL, "may_be_truncated", run_id)
        if found is None:
            raise await self._missing_run(run_id)
        return bool(found)
