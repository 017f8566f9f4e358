"""Runs that hold what their next calls may use: the ledger is asked less, and the limits hold."""

import asyncio
from decimal import Decimal

import pytest
from support.budgeted import call, echo, home_with, log_of, said, used
from support.credited import near_the_end
from support.doubles import CountingClock, types
from support.stories import Hung, virtually

from diptych.adapters.in_memory.budgets import MemoryLedger
from diptych.errors import StoreError
from diptych.loop.budget import Budget, Prices, SharedBudgets
from diptych.loop.commands import AskModel, MakeCall
from diptych.loop.messages import Delegation, Message, Usage, Used
from diptych.loop.model_request import ModelRequest
from diptych.loop.state import Run
from diptych.ports.budgets import Account
from diptych.runtime import estimate
from diptych.runtime.agent_budgets import AgentBudgets, BudgetTerms
from diptych.runtime.agent_ledger import IDLE_SECONDS, Reservation, day_key, session_key
from diptych.runtime.credit import Credit
from diptych.runtime.estimate import CALLS_AHEAD
from diptych.runtime.request import RunRequest
from diptych.runtime.run_ledger import CountedRun, RunLedger
from diptych.runtime.run_meter import ModelCall

FAR = {"tokens": 10**9, "cost": 10**6, "tool_calls": 10**6, "model_calls": 10**6, "steps": 10**6}
HI = AskModel(ModelRequest((Message("user", "hi"),)), "actions")
ANSWER = AskModel(ModelRequest((Message("user", "hi"),)), "answer")
ONE_TOOL = (call(n=1), said("{}"), said("Done."))


def end_of(items):
    return next(kind for kind in types(items) if kind in ("completed", "failed"))


class Noting(MemoryLedger):
    """Notes what it is asked, and with what; can be away."""

    is_away = False

    def __init__(self):
        super().__init__(asyncio.get_running_loop().time)
        self.asked = []

    async def _note(self, what, *arguments):
        self.asked.append(what)
        return await self._try(what, *arguments)

    async def _try(self, what, *arguments):
        if self.is_away:
            raise StoreError("away")
        return await getattr(super(), what)(*arguments)

    async def reserve(self, accounts, entry, amount, *ahead):
        self.asked.append("ahead" if ahead else "reserve")
        return await self._try("reserve", accounts, entry, amount, *ahead)

    async def reserve_up_to(self, *arguments):
        return await self._note("reserve_up_to", *arguments)

    async def spend(self, *arguments):
        return await self._note("spend", *arguments)

    async def settle(self, *arguments):
        return await self._note("settle", *arguments)

    async def end_run(self, *arguments):
        return await self._note("end_run", *arguments)

    def reserved(self):
        return [name for row in self._accounts.values() for name in row.reserved]


@virtually
async def test_far_from_the_end_a_run_asks_once_and_settles_once():
    ledger = Noting()
    home = home_with(*ONE_TOOL, session=FAR, day=FAR, ledger=ledger, tools={"echo": echo})
    await home.ask(session_id="talk")
    assert ledger.asked == ["ahead", "end_run"]
    assert ledger.reserved() == []
    for scope in ("perSession", "perDay"):
        assert (await used(home, scope))[:5] == (300, 0, 3, 1, 2)


@virtually
async def test_who_watches_is_told_of_80_percent_that_others_came_near_meanwhile():
    ledger = Noting()

    async def busy(**_):  # for as long as other runs of this process use nearly all of it
        counted = CountedRun(CountingClock(), log_of(run_id="other"), None)
        other = RunLedger(home.budgets._agent_ledger, counted)
        await other.settle_use(other.today(), "others", Used(tokens=FAR["tokens"] * 4 // 5 - 250))
        return "done"

    home = home_with(*ONE_TOOL, day=FAR, ledger=ledger, tools={"echo": busy})
    told = types(await home.ask(session_id="talk"))
    assert ledger.asked[:5] == ["ahead", "settle", "settle", "reserve", "settle"]
    assert told.count("[budget_warning]") == 1
    assert told.index("[budget_warning]") < told.index("completed")


@virtually
async def test_of_80_percent_that_a_run_came_to_at_its_end_the_next_one_tells():
    ledger, limits = Noting(), {"model_calls": 1_000}
    day = Account("perDay", day_key(CountingClock().seconds), Budget(**limits), 100_000)

    async def busy(**_):  # of another pod, so nobody here hears of it
        await MemoryLedger.settle(ledger, [day], "theirs", "their run", Used(model_calls=799))
        return "done"

    replies = [*ONE_TOOL, said("{}"), said("Hi."), said("{}"), said("Hi.")]
    home = home_with(*replies, day=limits, ledger=ledger, tools={"echo": busy})
    first, second, third = [types(await home.ask()) for _ in range(3)]
    assert "[budget_warning]" not in first
    assert second.count("[budget_warning]") == 1
    assert second.index("[budget_warning]") < second.index("completed")
    assert "[budget_warning]" not in third


@virtually
async def test_near_the_end_each_call_is_reserved_by_itself():
    ledger = Noting()
    day = {"tokens": 100_000}
    home = home_with(*ONE_TOOL, session=FAR, day=day, ledger=ledger, tools={"echo": echo})
    await home.ask()
    assert "ahead" not in ledger.asked
    assert ledger.asked.count("reserve") == 3
    assert (await used(home)).tokens == 300


@virtually
async def test_a_day_of_a_million_tokens_is_large_enough_for_credit():
    ledger, day = Noting(), {"tokens": 10**6, "cost": 5, "tool_calls": 1_000}
    home = home_with(*ONE_TOOL, session=day, day=day, ledger=ledger, tools={"echo": echo})
    await home.ask()
    assert ledger.asked == ["ahead", "end_run"]


@pytest.mark.parametrize("reserved", [8_000, 7_900])
@virtually
async def test_what_others_have_reserved_leaves_no_room_for_credit_and_is_asked_for_once(reserved):
    clock, ledger, limits = CountingClock(), Noting(), {"model_calls": 10_000}
    home = home_with(*ONE_TOOL, day=limits, ledger=ledger, clock=clock, tools={"echo": echo})
    day = Account("perDay", day_key(clock.seconds), Budget(**limits), 100_000)
    await ledger.reserve([day], "another run's", Used(model_calls=reserved))
    ledger.asked.clear()
    await home.ask()
    if reserved == 7_900:
        assert ledger.asked == ["ahead", "end_run"]
    else:
        single = ["reserve", "settle"]
        assert ledger.asked[:7] == ["ahead", *single, "spend", *single, "reserve"]
    assert ledger.reserved() == ["another run's"]
    assert (await used(home))[2:4] == (3, 1)


@virtually
async def test_credit_is_no_more_than_is_left_though_the_run_does_not_know_what_others_used(
    monkeypatch,
):
    near_the_end(monkeypatch)
    ledger = Noting()
    home = home_with(*["{}", "Hi."] * 4, session={"model_calls": 7}, ledger=ledger)
    runs = [await home.ask(session_id="talk") for _ in range(4)]
    assert [end_of(items) for items in runs] == ["completed"] * 3 + ["failed"]
    assert ledger.asked[:6] == ["ahead", "settle"] + ["ahead", "end_run"] * 2
    assert ledger.asked[6:8] == ["ahead", "reserve"]
    assert (await used(home, "perSession")).model_calls == 7
    assert ledger.reserved() == []


@virtually
async def test_of_a_session_near_its_end_a_run_has_no_credit_though_it_does_not_know_that():
    ledger, limits = Noting(), {"model_calls": 20_000}
    home = home_with(*ONE_TOOL, session=limits, ledger=ledger, tools={"echo": echo})
    talk = Account("perSession", session_key("talk"), Budget(**limits), 100_000)
    await ledger.settle([talk], "before", "another run", Used(model_calls=15_990))
    ledger.asked.clear()
    await home.ask(session_id="talk")
    assert ledger.asked[:3] == ["ahead", "reserve", "settle"]
    assert ledger.reserved() == []
    assert (await used(home, "perSession"))[2:4] == (15_993, 1)


@virtually
async def test_who_watches_is_told_at_80_percent_before_the_end(monkeypatch):
    near_the_end(monkeypatch)
    for used_before in range(5):
        replies = ["{}", "Hi."] * 2
        home = home_with(*replies, session={"model_calls": 5 + used_before})
        seen = [types(await home.ask(session_id="talk")) for _ in range(2)]
        told = [kinds for kinds in seen if "[budget_warning]" in kinds]
        assert all(kinds.index("[budget_warning]") < len(kinds) - 1 for kinds in told)
        assert bool(told) == (0.8 * (5 + used_before) <= 4)


@pytest.mark.parametrize("seconds", [0.5, 2.5 * IDLE_SECONDS])
@virtually
async def test_credit_is_returned_while_a_run_waits_for_a_tool(seconds):
    ledger, held = Noting(), []

    async def slow(**_):
        await asyncio.sleep(seconds)
        held.extend(ledger.reserved())

    home = home_with(*ONE_TOOL, day=FAR, ledger=ledger, tools={"echo": slow})
    await home.ask()
    is_idle = seconds > IDLE_SECONDS
    assert bool(held) is not is_idle
    assert ledger.asked == ["ahead", "settle"] * is_idle + ["ahead", "end_run"]
    assert (await used(home))[:4] == (300, 0, 3, 1)


@virtually
async def test_a_run_whose_idle_credit_cannot_be_returned_waits_at_its_end():
    ledger = Noting()

    async def slow(**_):
        ledger.is_away = True
        await asyncio.sleep(3 * IDLE_SECONDS)
        asyncio.get_running_loop().call_later(3, setattr, ledger, "is_away", False)

    home = home_with(*ONE_TOOL, day=FAR, ledger=ledger, tools={"echo": slow})
    assert types(await home.ask())[-1] == "completed"
    await asyncio.sleep(5)
    assert ledger.reserved() == []
    assert (await used(home))[:4] == (300, 0, 3, 1)


@virtually
async def test_a_request_that_uses_more_than_the_credit_returns_it():
    ledger, counted = Noting(), []
    replies = [said(call()["content"], prompt=90_000), said("{}"), said("Done.")]

    async def look(**_):
        counted.append((await used(home)).tokens)

    home = home_with(*replies, day=FAR, ledger=ledger, reply_tokens=20, tools={"echo": look})
    await home.ask()
    assert counted == [90_040]
    assert ledger.asked == ["ahead", "settle", "spend", "ahead", "end_run"]
    assert (await used(home)).tokens == 90_240


@virtually
async def test_without_a_ledger_no_call_is_made_far_from_the_end_either():
    ledger = Noting()
    home = home_with("{}", "Hi.", day=FAR, ledger=ledger)
    ledger.is_away = True
    items = await home.ask()
    assert items[-1].metadata["code"] == "budget_unavailable"
    assert home.model.requests == []


@virtually
async def test_time_is_asked_for_at_each_request():
    ledger = Noting()
    home = home_with(*ONE_TOOL, day={"wall_clock": 10**9}, ledger=ledger, tools={"echo": echo})
    await home.ask()
    assert ledger.asked.count("reserve") == 3


@virtually
async def test_credit_is_for_so_many_requests():
    ledger = Noting()
    calls = [call(n=n) for n in range(CALLS_AHEAD - 1)]
    home = home_with(
        *calls, said("{}"), said("Done."), day=FAR, ledger=ledger, tools={"echo": echo}
    )
    await home.ask("a long text " * 3_000)
    assert ledger.asked == ["ahead", "settle", "ahead", "end_run"]
    assert (await used(home))[2:4] == (CALLS_AHEAD + 1, CALLS_AHEAD - 1)
    assert home.budgets._agent_ledger._renewed == {}


@virtually
async def test_calls_of_tools_beyond_the_credit_are_counted_by_themselves():
    ledger = Noting()
    both = said("[" + ", ".join(call(n=n)["content"] for n in range(CALLS_AHEAD + 2)) + "]")
    home = home_with(both, said("{}"), said("Done."), day=FAR, ledger=ledger, tools={"echo": echo})
    await home.ask("a long text " * 3_000)
    assert ledger.asked == ["ahead", "spend", "spend", "end_run"]
    assert (await used(home))[2:4] == (3, CALLS_AHEAD + 2)


@pytest.mark.parametrize("is_tool", [False, True])
@virtually
async def test_what_is_used_after_midnight_is_of_the_new_day(is_tool):
    clock, ledger = CountingClock(), Noting()

    async def late(**_):
        clock.seconds += 0 if is_tool else 86_400

    home = home_with(*ONE_TOOL, day=FAR, ledger=ledger, clock=clock, tools={"echo": late})
    if is_tool:
        complete = home.model.complete

        async def until_midnight(request):
            clock.seconds += 0 if len(home.model.requests) else 86_400
            return await complete(request)

        home.model.complete = until_midnight
    keys = [day_key(clock.seconds + seconds) for seconds in (0, 86_400)]
    await home.ask()
    days = [Account("perDay", key, Budget(**FAR), 100_000) for key in keys]
    found = [each[2:4] for each in await ledger.used(days)]
    assert found == ([(1, 0), (2, 1)] if is_tool else [(1, 1), (2, 0)])


@virtually
async def test_a_request_that_outlives_its_run_is_settled_by_itself():
    class Stubborn(Hung):
        async def complete(self, request):
            try:
                await super().complete(request)
            except asyncio.CancelledError:
                await asyncio.sleep(5)
                raise

    ledger = Noting()
    home = home_with(model=Stubborn(), day=FAR, ledger=ledger)
    run_id = (await home.runs.start(RunRequest((Message("user", "hi"),)))).run_id
    await asyncio.sleep(1)
    await home.runs.cancel(run_id)
    assert (await used(home)).model_calls == 0
    assert ledger.reserved() == []
    await asyncio.sleep(10)
    assert ledger.asked == ["ahead", "end_run", "settle"]
    found = await used(home)
    assert (found.model_calls, found.tokens > 0) == (1, True)


FREE = Prices()


def new_credit(prices=FREE):
    """Credit for three requests with ten tokens, and replies of five."""
    return Credit(Reservation([], "e"), estimate.Estimate(prices)._new_bound(0, 5))


def covers(credit, prompt, reply):
    """Whether a request can draw on credit; then it is not under way."""
    call = ModelCall(HI, None, credit.reservation.accounts)
    call.prompt, call.reply = prompt, reply
    found = credit.take_request(call)
    assert call.entry == ("e" if found else "")
    if found:
        credit.in_flight = None
    return found


async def test_credit_covers_what_was_reserved_beside_what_was_used(monkeypatch):
    near_the_end(monkeypatch)
    credit = new_credit()
    assert covers(credit, 30, 15)
    assert covers(credit, 45, 0)  # of what replies leave
    assert not covers(credit, 46, 0)
    assert not covers(credit, 0, 16)
    credit.in_flight = ModelCall(HI, Usage(2, 1))
    assert not covers(credit, 1, 1)  # a run asks one thing at a time
    credit.end_request(credit.in_flight)
    assert covers(credit, 28, 14)
    assert not covers(credit, 29, 14)
    assert not covers(credit, 0, 15)


async def test_credit_covers_so_many_requests_and_calls(monkeypatch):
    near_the_end(monkeypatch)
    credit = new_credit()
    credit.end_request(ModelCall(HI))  # no reply counts
    for _ in range(2):
        credit.end_request(ModelCall(ANSWER, Usage()))
    assert covers(credit, 1, 1)
    credit.end_request(ModelCall(HI, Usage(1, 1)))
    assert not covers(credit, 1, 1)
    accounts = credit.reservation.accounts
    assert [credit.take_tool_call(accounts) for _ in range(4)] == [True, True, True, False]
    assert credit.used(estimate.Estimate(FREE)) == (2, 0, 3, 3, 1, 0)


@pytest.mark.parametrize("prices", [(1, 3), (3, 1), (2, 2), (0, 1), (1, 0)])
async def test_what_credit_covers_costs_no_more_than_is_reserved(prices, monkeypatch):
    near_the_end(monkeypatch)
    prices = Prices(*map(Decimal, prices))
    ahead = estimate.Estimate(prices)._new_bound(0, 5).ahead
    for prompts in range(0, 46, 5):
        for replies in range(16):
            credit = new_credit(prices=prices)
            if covers(credit, prompts, replies):
                credit.end_request(ModelCall(HI, Usage(prompts, replies)))
                assert credit.used(estimate.Estimate(prices)).cost <= ahead.cost


def test_credit_is_asked_for_requests_of_any_purpose_and_their_calls():
    budgets = SharedBudgets(per_day=Budget(tokens=10**9, tool_calls=10_000))
    bound = estimate.Estimate(Prices(Decimal(1), Decimal(2)), 50, budgets, overhead=7).bound(HI)
    n = CALLS_AHEAD
    assert bound.reply == 50
    assert bound.ahead[2:] == (n, n, n, 0)
    assert bound.ahead.tokens == (bound.prompt + 50) * n
    assert bound.ahead.cost == Decimal(bound.prompt + 100) * n / 10**6
    far = 8 * 10**8 - 8 * bound.ahead.tokens, 8_000 - 8 * n
    assert bound.far_budgets["perDay"] == Budget(tokens=far[0], tool_calls=far[1])
    few = SharedBudgets(per_day=Budget(tokens=10**9, tool_calls=10 * n))
    assert estimate.Estimate(Prices(), 50, few).bound(HI).far_budgets is None


@virtually
async def test_a_conversation_that_grows_is_covered():
    ledger = Noting()

    async def long(**_):
        return "a long text " * 500

    home = home_with(*ONE_TOOL, session=FAR, day=FAR, ledger=ledger, tools={"echo": long})
    await home.ask()
    sizes = [sum(len(m.content) for m in request) for request in home.model.requests]
    assert sizes[1] > 2 * sizes[0]
    assert ledger.asked == ["ahead", "end_run"]


@virtually
async def test_a_request_that_is_larger_than_all_that_is_left_returns_the_credit():
    ledger = Noting()

    async def huge(**_):
        return "a long text " * 10_000

    home = home_with(*ONE_TOOL, day=FAR, ledger=ledger, tools={"echo": huge})
    await home.ask()
    assert ledger.asked == ["ahead", "settle", "ahead", "end_run"]
    assert (await used(home))[:4] == (300, 0, 3, 1)


@virtually
async def test_credit_is_returned_before_a_delegation_is_lent_anything():
    ledger = Noting()
    terms = BudgetTerms(shared=SharedBudgets(per_day=Budget(**FAR)))
    meter = AgentBudgets(terms, ledger, CountingClock()).of_run(log_of(), Budget())
    counted = await meter.begin(HI)
    counted.usage = Usage(60, 40)
    await meter.end(counted, None)
    delegation = MakeCall(Delegation("call_1_1", "worker", "work"), 1)
    await meter.admit([delegation], Run(calls=(delegation.call,)), lambda _: None)
    assert ledger.asked == ["ahead", "settle", "reserve_up_to"]


@virtually
async def test_what_is_settled_of_yesterday_is_not_told_as_used_today():
    clock, ledger = CountingClock(), Noting()
    terms = BudgetTerms(shared=SharedBudgets(per_day=Budget(**FAR)))
    budgets = AgentBudgets(terms, ledger, clock)
    meters = [budgets.of_run(log_of(run_id=f"run-{n}"), Budget()) for n in (1, 2)]
    begun = await meters[0].begin(HI)
    clock.seconds += 86_400
    other = await meters[1].begin(HI)
    for meter, asked, tokens in ((meters[1], other, 60), (meters[0], begun, 70)):
        asked.usage = Usage(tokens, 40)
        await meter.end(asked, None)
    await meters[1].close(has_ended=True)
    await meters[0].begin(HI)
    account, today = budgets.of_day
    assert (account.key, today.tokens) == (day_key(clock.seconds), 100)
