"""Who may write the runs of a session: a lease that runs out, and a fence that does not.

Each decision is one script, so that two processes cannot come between each other.
"""

from collections.abc import Sequence

from diptych.adapters.redis import scripts
from diptych.adapters.redis.encoding import dumps, pack_demand, pack_said, read_demand
from diptych.adapters.redis.store_part import Part, expired, raise_if_refused
from diptych.errors import TooManyMessages
from diptych.loop.events import Signal, Steered
from diptych.loop.messages import Message
from diptych.loop.state import MAX_MESSAGES_PER_RUN
from diptych.ports.entries import Lease

_NAMED_AT_ONCE = 50
_TOO_MANY = 2


class LeasesPart(Part):
    """Fulfils `ports.SessionLeases`."""

    @property
    def lease_seconds(self) -> float | None:
        return self._settings.lease_seconds

    async def claim(self, session_id: str, token: str) -> Lease | None:
        server = self._link.server.run_id
        held = await self._link.run(scripts.CLAIM, session_id, token, server, self._lease_ms)
        return Lease(session_id, token) if held else None

    async def next_run(self, lease: Lease) -> str | None:
        reply = await self._link.run(scripts.HEAD, *self._of(lease))
        raise_if_refused(reply)
        return reply[1].decode() if reply[1] else None

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        reply = await self._link.run_patiently(
            scripts.CONCLUDE,
            *self._of(lease),
            run_id,
            pack_said(said),
            self._keep_ms,
            self._blob_ms,
        )
        raise_if_refused(reply)
        return reply[1].decode() if reply[1] else None

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        if not leases:
            return ()
        pairs = [part for lease in leases for part in (lease.session_id, lease.token)]
        lost = await self._link.run(scripts.RENEW, self._lease_ms, *pairs)
        return [leases[number] for number in lost]

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        message = dumps({"released": lease.session_id}) if hand_over else b""
        await self._link.run(scripts.RELEASE, lease.session_id, lease.token, message)

    async def unowned_sessions(self) -> Sequence[str]:
        found = await self._link.run(scripts.UNOWNED, _NAMED_AT_ONCE, self._keep_ms)
        return [session_id.decode() for session_id in found]

    async def send_signal(self, run_id: str, demand: Signal) -> None:
        [session_id] = await self._link.ask(("HGET", self._key("run", run_id), "session"))
        if session_id is None:
            raise await self._absent(run_id)
        packed = pack_demand(demand)
        message = dumps([session_id.decode(), run_id, packed.decode()])
        if isinstance(demand, Steered):
            taken = await self._link.run(
                scripts.DEMAND, run_id, packed, message, MAX_MESSAGES_PER_RUN
            )
        else:
            taken = await self._link.run(scripts.DEMAND_END, run_id, packed, message, "")
        if not taken:
            raise expired()
        if taken == _TOO_MANY:
            raise TooManyMessages

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        [packed] = await self._link.ask(("LRANGE", self._key("asked", run_id), 0, -1))
        return [demand for demand in map(read_demand, packed) if demand]

    async def may_be_truncated(self, run_id: str) -> bool:
        """Whether records that a former owner took for written may be missing.

        So it is when the run was last driven on another server, or before this one's restart, and
        nothing was added to it since.
        """
        [meta] = await self._link.ask(("HMGET", self._key("run", run_id), "lost", "seq", "server"))
        lost, seq, server = meta
        if seq is None:
            raise await self._absent(run_id)
        return self._has_moved(server) or (lost is not None and lost == seq)

    def _of(self, lease: Lease) -> tuple[str, str, str, int]:
        return lease.session_id, lease.token, self._link.server.run_id, self._lease_ms
