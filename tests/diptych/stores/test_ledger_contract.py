"""What every ledger promises, in memory, in SQLite and in Redis: budgets that runs share."""

import asyncio
import json
import random
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import RedisServer
from support.redis_stores import stores

from diptych.core.budget import Budget
from diptych.core.messages import Used
from diptych.ports.budgets import RESERVED_SECONDS, Account, Ledger
from diptych.stores.memory.budgets import MemoryLedger
from diptych.stores.sqlite import SqliteStore

MUCH = Decimal("999999999.999999")


@dataclass
class Books:
    """A ledger, a second one over the same store, and what lets time pass in it."""

    ledger: Ledger
    other: Ledger
    wait: Callable[[float], Any]


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def books(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Books]:
    now = [0.0]

    async def pass_time(seconds: float) -> None:
        now[0] += seconds

    if request.param == "memory":
        ledger = MemoryLedger(lambda: now[0])
        yield Books(ledger, ledger, pass_time)
        return
    if request.param == "sqlite":
        local = SqliteStore(tmp_path / "helper.sqlite", lambda: now[0])
        yield Books(local.ledger, local.ledger, pass_time)
        await local.aclose()
        return
    server: RedisServer = request.getfixturevalue("server")
    async with stores(server.url, 2) as (one, other):

        async def let_expire(seconds: float) -> None:
            """Move what expires into the past: nobody waits half a minute here."""
            ms = round(seconds * 1000)
            for name in server.ask("KEYS", "*:budget:*"):
                account = json.loads(server.ask("HGET", name, "text"))
                for row in account["reserved"].values():
                    row[0] -= seconds
                server.ask("HSET", name, "text", json.dumps(account))
            for name in (*server.ask("KEYS", "*:settled:*"), *server.ask("KEYS", "*:ended:*")):
                server.ask("PEXPIRE", name, server.ask("PTTL", name) - ms)

        yield Books(one.ledger, other.ledger, let_expire)


def account(**limits: Any) -> Account:
    return Account("perDay", secrets.token_hex(8), Budget(**limits), 3600)


TOKENS, SHARE = Used(tokens=100), Budget(tokens=100)


async def test_what_is_settled_is_used_and_what_is_reserved_is_not(books: Books) -> None:
    day = account(tokens=1_000)
    assert (await books.ledger.reserve([day], "e1", TOKENS)).outcome == "ok"
    assert await books.ledger.used([day]) == [Used()]
    assert await books.ledger.settle([day], "e1", "run-1", Used(tokens=60)) == [Used(tokens=60)]
    assert await books.other.used([day]) == [Used(tokens=60)]


async def test_what_is_reserved_counts_until_it_is_settled(books: Books) -> None:
    day = account(tokens=100)
    await books.ledger.reserve([day], "e1", TOKENS)
    busy = await books.other.reserve([day], "e2", TOKENS)
    assert (busy.outcome, busy.limit) == ("busy", "tokens")
    await books.ledger.settle([day], "e1", "run-1", Used(tokens=60))
    assert (await books.other.reserve([day], "e2", TOKENS)).outcome == "ok"
    await books.other.settle([day], "e2", "run-2", Used(tokens=60))
    gone = await books.ledger.reserve([day], "e3", TOKENS)
    assert (gone.outcome, gone.limit, gone.used) == ("gone", "tokens", [Used(tokens=120)])


async def test_each_step_may_be_repeated(books: Books) -> None:
    day = account(tokens=1_000)
    for _ in range(3):
        assert (await books.ledger.reserve([day], "e1", TOKENS)).outcome == "ok"
    for _ in range(3):
        await books.ledger.settle([day], "e1", "run-1", Used(tokens=60))
    for _ in range(3):
        await books.ledger.count_record(day, "run-1", Used(tokens=80))
    assert await books.ledger.used([day]) == [Used(tokens=80)]
    assert (await books.ledger.reserve([day], "e2", Used(tokens=920))).outcome == "ok"
    assert (await books.ledger.reserve([day], "e3", TOKENS)).outcome == "busy"


async def test_what_is_spent_is_reserved_and_settled_in_one_step(books: Books) -> None:
    day, one = account(tool_calls=2), Used(tool_calls=1)
    for _ in range(3):  # a repeated step counts once
        spent = await books.ledger.spend([day], "e1", "run-1", one)
        assert (spent.outcome, spent.used) == ("ok", [one])
    await books.other.reserve([day], "e2", one)
    busy = await books.ledger.spend([day], "e3", "run-1", one)
    assert (busy.outcome, busy.limit, busy.used) == ("busy", "tool_calls", [one])
    await books.other.settle([day], "e2", "run-2", one)
    gone = await books.ledger.spend([day], "e3", "run-1", one)
    assert (gone.outcome, gone.place, gone.used) == ("gone", 0, [Used(tool_calls=2)])
    await books.ledger.count_record(day, "run-1", one)  # it is counted already
    assert await books.other.used([day]) == [Used(tool_calls=2)]


async def test_one_account_that_has_nothing_left_stands_for_both(books: Books) -> None:
    talk, day = account(tokens=1_000), account(tokens=10)
    assert (await books.ledger.reserve([talk, day], "e1", TOKENS)).outcome == "ok"
    await books.ledger.settle([talk, day], "e1", "run-1", TOKENS)
    gone = await books.ledger.reserve([talk, day], "e2", TOKENS)
    assert (gone.outcome, gone.place) == ("gone", 1)
    assert (await books.ledger.reserve([talk], "e3", Used(tokens=900))).outcome == "ok"


async def test_limits_that_an_amount_has_nothing_of_do_not_count_and_time_always_does(
    books: Books,
) -> None:
    day = account(tool_calls=1, wall_clock=1_000)
    await books.ledger.settle([day], "e1", "run-1", Used(tool_calls=1))
    assert (await books.ledger.reserve([day], "e2", Used(model_calls=1))).outcome == "ok"
    assert (await books.ledger.reserve([day], "e3", Used(tool_calls=1))).limit == "tool_calls"
    await books.ledger.settle([day], "e2", "run-1", Used(wall_clock=1_000))
    assert (await books.ledger.reserve([day], "e4", Used(model_calls=1))).limit == "wall_clock"


async def test_a_share_is_never_more_than_is_left(books: Books) -> None:
    talk, day = account(tool_calls=9), account(tokens=100, tool_calls=4, cost=MUCH)
    penny = Decimal("0.000000000001")
    held = Used(tokens=40, cost=MUCH - penny, tool_calls=1)
    await books.ledger.reserve([talk, day], "e1", held)
    wanted = Budget(tokens=80, cost=MUCH, model_calls=5, tool_calls=4)
    share = await books.other.reserve_share([talk, day], "run-1/share/a", wanted, 1)
    assert (share.outcome, share.amount) == ("ok", Used(60, penny, model_calls=5, tool_calls=3))
    busy = await books.ledger.reserve_share([talk, day], "run-2/share/a", wanted, 1)
    assert (busy.outcome, busy.limit) == ("busy", "tokens")
    await books.ledger.settle([talk, day], "e1", "run-0", Used())
    found = await books.ledger.reserve_share([talk, day], "run-2/share/a", wanted, 1)
    assert found.amount == Used(40, MUCH - penny, model_calls=5, tool_calls=1)
    assert await books.ledger.used([day]) == [Used()]


async def test_a_share_stays_with_the_run_whoever_owns_it(books: Books) -> None:
    day = account(tokens=100)
    first = await books.ledger.reserve_share([day], "run-1/share/a", Budget(tokens=100), 1)
    await books.wait(RESERVED_SECONDS * 0.75)
    again = await books.other.reserve_share([day], "run-1/share/a", Budget(tokens=70), 1)
    assert (again.outcome, again.amount) == ("ok", first.amount)
    await books.wait(RESERVED_SECONDS * 0.75)  # the new owner has not come to renew it yet
    assert (await books.ledger.reserve_share([day], "run-2/share/a", SHARE, 1)).outcome == "busy"
    await books.other.settle([day], "run-1/share/a", "run-1", Used(tokens=30))
    await books.ledger.settle([day], "run-1/share/a", "run-1", Used(tokens=30))  # a former owner
    assert await books.ledger.used([day]) == [Used(tokens=30)]


async def test_a_share_across_midnight_is_reserved_of_the_new_day_too(books: Books) -> None:
    talk, day, next_day = account(), account(), account(tokens=100)
    await books.ledger.reserve_share([talk, day], "run-1/share/a", SHARE, 1)
    assert (
        await books.other.reserve_share([talk, next_day], "run-1/share/a", SHARE, 1)
    ).amount == TOKENS
    assert (await books.ledger.reserve([next_day], "e1", TOKENS)).outcome == "busy"
    await books.other.settle([talk, next_day], "run-1/share/a", "run-1", Used(tokens=30))
    for name in ("run-2/share/a", "run-2/share/a"):
        found = await books.ledger.reserve_share([talk, next_day], name, SHARE, 1)
        assert found.amount == Used(tokens=70)


async def test_a_new_owner_after_midnight_is_not_refused_by_its_own_share(books: Books) -> None:
    talk, day, next_day = account(tokens=100), account(), account(tokens=150)
    await books.ledger.reserve_share([talk, day], "run-1/share/a", SHARE, 1)
    renewed = await books.other.reserve_share([talk, next_day], "run-1/share/a", SHARE, 1)
    assert (renewed.outcome, renewed.amount) == ("ok", TOKENS)
    assert (await books.ledger.reserve([talk], "e1", TOKENS)).outcome == "busy"
    left = await books.ledger.reserve_share([next_day], "run-2/share/a", SHARE, 1)
    assert left.amount == Used(tokens=50)


async def test_a_refused_new_owner_keeps_the_share_of_its_run(books: Books) -> None:
    talk, day, next_day = account(tokens=100), account(), account(tokens=100)
    await books.ledger.reserve_share([talk, day], "run-1/share/a", SHARE, 1)
    await books.ledger.reserve([next_day], "others", TOKENS)
    renewed = await books.other.reserve_share([talk, next_day], "run-1/share/a", SHARE, 1)
    assert (renewed.outcome, renewed.place) == ("busy", 1)
    assert (await books.ledger.reserve([talk], "e1", TOKENS)).outcome == "busy"
    await books.other.settle([talk, day], "run-1/share/a", "run-1", Used())
    assert (await books.ledger.reserve_share([talk], "e2", SHARE, 1)).amount == TOKENS


async def test_what_was_settled_is_not_reserved_again(books: Books) -> None:
    day = account(tokens=100)
    for _ in range(2):
        assert (await books.ledger.reserve([day], "e1", TOKENS)).outcome == "ok"
        await books.other.settle([day], "e1", "run-1", Used())
        assert (await books.ledger.reserve_share([day], "e3", SHARE, 1)).amount == TOKENS
        await books.other.settle([day], "e3", "run-1", Used())
    await books.ledger.reserve([day], "e1", TOKENS)  # sent again, and late
    assert (await books.ledger.reserve_share([day], "e2", SHARE, 1)).amount == TOKENS


async def test_who_renews_what_is_settled_does_not_have_it_counted_again(books: Books) -> None:
    day = account(tokens=1_000)
    await books.ledger.reserve([day], "e1", TOKENS)
    await books.ledger.settle([day], "e1", "run-1", TOKENS)
    await books.other.renew([day], ["e1"])
    await books.wait(RESERVED_SECONDS + 1)
    await books.other.settle([day], "e1", "run-1", TOKENS)
    assert await books.ledger.used([day]) == [TOKENS]


async def test_a_run_that_is_forgotten_is_not_counted_again(books: Books) -> None:
    day = account(tokens=1_000)
    await books.ledger.settle([day], "e1", "run-1", Used(tokens=60))
    for ledger in (books.ledger, books.other):
        await ledger.count_record(day, "run-1", Used(tokens=80))
        await ledger.end_run([day], "run-1")
    assert await books.ledger.used([day]) == [Used(tokens=80)]
    await books.other.count_record(day, "run-2", Used(tokens=10))
    assert await books.ledger.used([day]) == [Used(tokens=90)]


async def test_what_comes_after_the_end_of_a_run_counts_and_its_record_does_not(
    books: Books,
) -> None:
    talk, day = account(tokens=1_000), account(tokens=100)
    await books.ledger.settle([talk, day], "e1", "run-1", Used(tokens=60))
    await books.ledger.end_run([talk, day], "run-1")
    await books.wait(90)  # it is no more known by its entry
    await books.other.end_run([talk, day], "run-1")
    await books.other.count_record(day, "run-1", Used(tokens=60))
    assert await books.ledger.used([talk, day]) == [Used(tokens=60)] * 2
    await books.ledger.settle([day], "late", "run-1", Used(tokens=7))  # a request by itself
    assert await books.ledger.used([day]) == [Used(tokens=67)]


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
async def test_what_the_run_does_not_limit_is_divided(books: Books, parts: int) -> None:
    talk, day = account(tool_calls=3), account(tokens=1_000, cost=Decimal("0.5"), wall_clock=9)
    await books.ledger.settle([talk, day], "e1", "run-1", Used(tokens=100))
    found = await books.other.reserve_share([talk, day], "run-1/share/a", Budget(steps=4), parts)
    assert found.amount.tool_calls == -(-3 // parts)
    assert abs(found.amount.tokens - 900 / parts) < 1
    assert abs(found.amount.cost - Decimal("0.5") / parts) < Decimal("1e-9")
    assert (found.amount.steps, found.amount.wall_clock) == (4, 0)


async def test_a_run_is_known_to_have_ended_since_its_end_was_repeated(books: Books) -> None:
    day = account(tokens=1_000)
    for _ in range(2):
        await books.ledger.end_run([day], "run-1")
        await books.wait(400)
    await books.other.count_record(day, "run-1", TOKENS)
    assert await books.ledger.used([day]) == [Used()]


async def test_a_reservation_ends_with_its_owner_and_lives_with_it(books: Books) -> None:
    day = account(tokens=100)
    await books.ledger.reserve([day], "dead", TOKENS)
    await books.wait(RESERVED_SECONDS / 2)
    assert (await books.ledger.reserve([day], "e2", TOKENS)).outcome == "busy"
    await books.ledger.renew([day], ["dead"])
    await books.wait(RESERVED_SECONDS * 0.75)
    assert (await books.ledger.reserve([day], "e2", TOKENS)).outcome == "busy"
    await books.wait(RESERVED_SECONDS)
    assert (await books.ledger.reserve([day], "e2", TOKENS)).outcome == "ok"


async def test_what_comes_back_late_is_counted_all_the_same(books: Books) -> None:
    day = account(tokens=1_000)
    await books.ledger.reserve([day], "late", TOKENS)
    await books.wait(RESERVED_SECONDS + 1)
    await books.ledger.used([day])
    for _ in range(2):
        await books.ledger.settle([day], "late", "run-1", TOKENS)
    assert await books.ledger.used([day]) == [TOKENS]
    assert (await books.ledger.reserve([day], "e2", Used(tokens=900))).outcome == "ok"
    assert (await books.ledger.reserve([day], "e3", TOKENS)).outcome == "busy"


async def test_a_new_owner_counts_what_is_on_record_and_was_never_settled(books: Books) -> None:
    day = account(tokens=10_000, cost=MUCH)
    await books.ledger.settle([day], "e1", "run-1", Used(tokens=60, cost=Decimal("0.000001")))
    await books.other.count_record(day, "run-1", Used(tokens=100, cost=Decimal("0.000003")))
    assert await books.ledger.used([day]) == [Used(tokens=100, cost=Decimal("0.000003"))]
    await books.other.count_record(day, "run-1", Used(tokens=30))  # the record has lost a reply
    assert await books.ledger.used([day]) == [Used(tokens=100, cost=Decimal("0.000003"))]
    await books.ledger.end_run([day], "run-1")
    assert await books.ledger.used([day]) == [Used(tokens=100, cost=Decimal("0.000003"))]


async def test_money_is_exact_however_much_of_it_there_is(books: Books) -> None:
    penny = Decimal("0.000000000001")
    day = account(cost=MUCH)
    await books.ledger.settle([day], "e1", "run-1", Used(cost=MUCH - penny))
    assert (await books.ledger.reserve([day], "e2", Used(cost=penny))).outcome == "ok"
    assert (await books.ledger.reserve([day], "e3", Used(cost=penny))).outcome == "busy"
    [used] = await books.ledger.settle([day], "e2", "run-1", Used(cost=penny))
    assert used.cost == MUCH
    assert (await books.ledger.reserve([day], "e4", Used(cost=penny))).limit == "cost"


async def test_many_who_use_it_at_once_go_over_by_one_call_at_most(books: Books) -> None:
    day, chance, largest = account(tokens=5_000), random.Random(5), 200

    async def run(number: int, ledger: Ledger) -> None:
        for call in range(10):
            entry = f"{number}/{call}"
            found = await ledger.reserve([day], entry, Used(largest))
            while found.outcome == "busy":
                await asyncio.sleep(0.001)
                found = await ledger.reserve([day], entry, Used(largest))
            if found.outcome == "gone":
                return
            await asyncio.sleep(chance.random() / 500)
            await ledger.settle([day], entry, f"run-{number}", Used(chance.randint(1, largest)))

    await asyncio.gather(*(run(n, (books.ledger, books.other)[n % 2]) for n in range(100)))
    [used] = await books.ledger.used([day])
    assert 5_000 <= used.tokens < 5_000 + largest


async def test_steps_of_two_replicas_at_once_lose_nothing(books: Books) -> None:
    day, ledgers = account(tokens=10_000), (books.ledger, books.other)
    steps = [ledgers[n % 2].settle([day], f"e{n}", f"run-{n}", Used(tokens=1)) for n in range(200)]
    await asyncio.gather(*steps)
    assert await books.ledger.used([day]) == [Used(tokens=200)]


async def test_absurd_amounts_are_used_up(books: Books) -> None:
    day = account(model_calls=100, tokens=1_000)
    absurd = Used(tokens=2**64, cost=Decimal(10**9), model_calls=1)
    for n in range(3):
        await books.ledger.settle([day], f"e{n}", "run-1", absurd)
    assert await books.other.used([day]) == [Used(3 * 2**64, 3 * Decimal(10**9), 3)]
    assert (await books.ledger.reserve([day], "e9", absurd)).outcome == "gone"


async def test_of_too_many_accounts_those_are_forgotten_that_were_used_longest_ago() -> None:
    now = [0.0]
    ledger = MemoryLedger(lambda: now[0])
    accounts = [account(tokens=1_000) for _ in range(11_001)]
    for each in accounts:
        now[0] += 0.01
        await ledger.settle([each], each.key, "run-1", TOKENS)
        await ledger.used([accounts[0]])  # it is used all the time
    assert await ledger.used([accounts[1]]) == [Used()]
    assert await ledger.used([accounts[0], accounts[-1]]) == [TOKENS, TOKENS]
    assert await ledger.used(accounts[-9_000:]) == [TOKENS] * 9_000
