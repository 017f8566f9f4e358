"""The ledger in Redis: budgets that the runs of all replicas share. Each use is one script."""

import json
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from diptych.core.budget import LIMITS, Budget, from_integers, to_integers
from diptych.core.messages import NO_USE, Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Reserved
from diptych.stores.redis import scripts
from diptych.stores.redis.client import StoreClient
from diptych.stores.redis.pipeline import Reply
from diptych.stores.redis.write_buffer import Argument

_MOST = 2**62  # of an amount: Redis counts in 64 bits
_RESERVED_MS = round(RESERVED_SECONDS * 1000)
_KNOWN_MS = 120_000  # for which an entry is known as settled: it may be settled again
_ENDED_MS = 600_000  # for which it is known that all of a run was counted
_What = Literal["reserve", "share", "spend", "renew", "settle", "count_record", "end", "read"]


class _Step(NamedTuple):
    """What is done; a share is one of so many `parts`. Of `renew`, `entry` is a list in JSON."""

    what: _What
    entry: str = ""
    run_id: str = ""
    parts: int = 1


class RedisLedger(StoreClient):
    """Fulfils `ports.budgets.Ledger`."""

    async def reserve(self, accounts: Sequence[Account], entry: str, amount: Used) -> Reserved:
        return _reserved(await self._run(_Step("reserve", entry), accounts, amount))

    async def reserve_share(
        self, accounts: Sequence[Account], entry: str, wanted: Budget, parts: int
    ) -> Reserved:
        return _reserved(await self._run(_Step("share", entry, parts=parts), accounts, wanted))

    async def spend(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Reserved:
        return _reserved(await self._run(_Step("spend", entry, run_id), accounts, used))

    async def renew(self, accounts: Sequence[Account], entries: Sequence[str]) -> None:
        await self._run(_Step("renew", json.dumps(entries)), accounts)

    async def settle(
        self, accounts: Sequence[Account], entry: str, run_id: str, used: Used
    ) -> Sequence[Used]:
        return _sums((await self._run(_Step("settle", entry, run_id), accounts, used))[3])

    async def count_record(self, account: Account, run_id: str, recorded: Used) -> None:
        await self._run(_Step("count_record", run_id=run_id), [account], recorded)

    async def end_run(self, accounts: Sequence[Account], run_id: str) -> None:
        await self._run(_Step("end", run_id=run_id), accounts)

    async def used(self, accounts: Sequence[Account]) -> Sequence[Used]:
        return _sums((await self._run(_Step("read"), accounts))[3])

    async def _run(
        self, step: _Step, accounts: Sequence[Account], amount: Used | Budget = NO_USE
    ) -> Sequence[Reply]:
        if isinstance(amount, Budget):
            amounts: list[Argument] = [
                "" if n is None else min(n, _MOST) for n in amount.in_integers
            ]
        else:
            amounts = [min(number, _MOST) for number in to_integers(amount)]
        arguments: list[Argument] = [*step[:3], _RESERVED_MS, _KNOWN_MS, _ENDED_MS, step.parts]
        for account in accounts:
            limits = ["" if each is None else each for each in account.budget.in_integers]
            arguments += [account.key, round(account.seconds * 1000), *limits, *amounts]
        reply: Sequence[Reply] = await self._connection.run_script(scripts.BUDGET, *arguments)
        return reply


def _reserved(reply: Sequence[Reply]) -> Reserved:
    outcome = cast("Literal['ok', 'busy', 'gone']", reply[0].decode())
    place, limit = max(0, reply[1] - 1), LIMITS[max(0, reply[2] - 1)]
    amount = from_integers(map(int, reply[4])) if reply[4] else NO_USE
    return Reserved(outcome, _sums(reply[3]), place, limit, amount)


def _sums(rows: Reply) -> list[Used]:
    return [from_integers(map(int, row)) for row in rows]
