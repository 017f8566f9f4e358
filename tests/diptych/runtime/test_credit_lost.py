"""Credit where something goes wrong: it runs out, its run ends early, the ledger is away."""

import asyncio

import pytest
from support.budgeted import call, echo, home_with, log_of, said, used
from support.doubles import CountingClock, ListeningModel, types
from support.stories import virtually

from diptych.adapters.in_memory.budgets import MemoryLedger
from diptych.errors import StoreError
from diptych.loop.budget import Budget, SharedBudgets
from diptych.loop.codec import Record
from diptych.loop.commands import AskModel
from diptych.loop.messages import Message, Usage, Used
from diptych.loop.model_request import ModelRequest
from diptych.ports.budgets import AHEAD_SECONDS, Account
from diptych.runtime.agent_budgets import AgentBudgets, BudgetTerms
from diptych.runtime.agent_ledger import SECONDS_OF_A_DAY, day_key
from diptych.runtime.request import RunRequest

FAR = {"tokens": 10**9, "cost": 10**6, "tool_calls": 10**6, "model_calls": 10**6, "steps": 10**6}
DAY = day_key(CountingClock().now())
ASKED = AskModel(ModelRequest((Message("user", "hi"),)), "actions")
ONE_TOOL = (call(n=1), said("{}"), said("Done."))


class Flaky(MemoryLedger):
    """Raises for what is `away`; notes what was asked."""

    away = frozenset()

    def __init__(self):
        super().__init__(asyncio.get_running_loop().time)
        self.asked = []

    async def _try(self, what, *arguments):
        self.asked.append(what)
        if what in self.away:
            raise StoreError("away")
        return await getattr(super(), what)(*arguments)

    async def reserve(self, *arguments):
        return await self._try("reserve", *arguments)

    async def spend(self, *arguments):
        return await self._try("spend", *arguments)

    async def renew(self, *arguments):
        await self._try("renew", *arguments)

    async def settle(self, *arguments):
        return await self._try("settle", *arguments)

    async def count_record(self, *arguments):
        await self._try("count_record", *arguments)

    async def end_run(self, *arguments):
        return await self._try("end_run", *arguments)

    def held(self):
        now, rows = self._now(), self._accounts.values()
        return sum(until >= now for row in rows for until, _ in row.reserved.values())


class Named(CountingClock):
    """Gives each process another name."""

    names = iter(range(1_000))

    def token(self):
        return f"{next(self.names):012}"


class Waiting(ListeningModel):
    """Waits before each reply, for so many seconds."""

    seconds = 25

    async def wait(self):
        await asyncio.sleep(self.seconds)

    async def complete(self, request):
        await self.wait()
        return await super().complete(request)

    async def stream(self, request):
        await self.wait()
        async for delta in super().stream(request):
            yield delta


def meter(ledger, records, clock=None, day=FAR):
    terms = BudgetTerms(shared=SharedBudgets(per_day=Budget(**day)))
    budgets = AgentBudgets(terms, ledger, clock or Named())
    return budgets.of_run(log_of(records), Budget())


def begun():
    """The record of a run whose request is on it."""
    return [Record("run-1", "talk", 1, "user_message", 1_000_000.0, "hi")]


def record_reply(records):
    about = {"usage": {"prompt_tokens": 60, "completion_tokens": 40}}
    records.append(
        Record("run-1", "talk", len(records) + 1, "model_reply", 1_000_000.0, "{}", about)
    )


async def counted(ledger):
    """What the ledger has counted of the day."""
    [found] = await ledger.used([Account("perDay", DAY, Budget(**FAR), 1_000)])
    return found


async def one_request(meter):
    call = await meter.begin(ASKED)
    call.usage = Usage(60, 40)
    await meter.end(call, None)


@virtually
async def test_a_request_that_ends_later_than_its_run_is_counted():
    class Unwinding(Waiting):
        async def wait(self):
            if self.requests:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(2)

    ledger = Flaky()
    home = home_with(model=Unwinding(call()), day=FAR, tools={"echo": echo}, ledger=ledger)
    run_id = (await home.runs.start(RunRequest((Message("user", "hi"),)))).run_id
    await asyncio.sleep(0.5)
    await home.runs.cancel(run_id)
    await home.told(run_id)
    await asyncio.sleep(5)
    assert (await used(home))[2:4] == (2, 1)
    assert ledger.held() == 0


@virtually
async def test_who_watches_is_told_at_80_percent_before_the_end_of_many_runs_at_once():
    class Slow(Waiting):
        async def wait(self):
            await asyncio.sleep(0.1)

    limits = {"model_calls": 20_000}
    home = home_with(model=Slow(*ONE_TOOL), day=limits, tools={"echo": echo})
    day = Account("perDay", DAY, Budget(**limits), 60)
    await home.ledger.settle([day], "before", "another run", Used(model_calls=15_985))
    seen = [types(items) for items in await asyncio.gather(*(home.ask() for _ in range(10)))]
    told = [kinds for kinds in seen if "[budget_warning]" in kinds]
    assert (await used(home)).model_calls == 16_015
    assert len(told) == 1
    assert told[0].index("[budget_warning]") < told[0].index("completed")


@virtually
async def test_a_run_draws_on_no_credit_that_may_have_run_out():
    class Long(Waiting):
        held, seconds = (), AHEAD_SECONDS / 2

        async def wait(self):
            self.held += (ledger.held(),)
            await super().wait()

    async def slow(**_):
        await asyncio.sleep(0.9)

    ledger = Flaky()
    ledger.away = {"renew"}
    model = Long(call(n=1), call(n=2), *ONE_TOOL[1:])
    home = home_with(model=model, day=FAR, ledger=ledger, tools={"echo": slow})
    await home.ask("a long text " * 1_000)
    assert model.held == (1, 1, 1, 1)
    assert (await used(home))[:4] == (400, 0, 4, 2)


@virtually
async def test_a_tool_draws_on_no_credit_that_may_have_run_out():
    class Stalled(Waiting):
        seconds = AHEAD_SECONDS + 1

    ledger = Flaky()
    ledger.away = {"renew"}
    home = home_with(model=Stalled(*ONE_TOOL), day=FAR, ledger=ledger, tools={"echo": echo})
    await home.ask()
    assert ledger.asked.count("spend") == 1
    assert (await used(home))[:4] == (300, 0, 3, 1)


@virtually
async def test_credit_that_is_renewed_is_drawn_on():
    ledger = Flaky()
    home = home_with(model=Waiting(*ONE_TOOL), day=FAR, ledger=ledger, tools={"echo": echo})
    await home.ask("a long text " * 1_000)
    assert ledger.asked.count("reserve") == 1


@virtually
async def test_a_stalled_process_does_not_take_what_ran_out_for_renewed():
    """It wakes up, and renews what is gone before the run goes on."""

    class Stalling(Waiting):
        held = ()

        async def wait(self):
            self.held += (ledger.held(),)
            await asyncio.sleep(AHEAD_SECONDS / 2 - 3)

    class Late(Flaky):
        seconds = AHEAD_SECONDS - 8

        async def renew(self, *arguments):
            seconds, self.seconds = self.seconds, 0
            await asyncio.sleep(seconds)
            await super().renew(*arguments)

    ledger = Late()
    model = Stalling(*[call(n=n) for n in range(4)], *ONE_TOOL[1:])
    home = home_with(model=model, day=FAR, ledger=ledger, tools={"echo": echo})
    await home.ask("a long text " * 1_000)
    assert 0 not in model.held
    assert (await used(home))[:4] == (600, 0, 6, 4)


@pytest.mark.parametrize("seconds", [5, 9.7, 10, 10.5, 13, 20, 25])
@virtually
async def test_what_is_settled_late_is_not_counted_too(seconds):
    ledger, loop = Flaky(), asyncio.get_running_loop()

    class Last(Waiting):
        async def stream(self, request):
            async for delta in super().stream(request):
                yield delta
            ledger.away = {"settle", "count_record", "end_run"}
            loop.call_later(seconds, setattr, ledger, "away", ())

    async def work(request, progress):
        return "done"

    replies = said('{"agent": "worker", "task": "work"}'), said("{}"), said("Done.")
    home = home_with(model=Last(*replies), day=FAR, ledger=ledger, agents={"worker": work})
    await home.ask()
    await asyncio.sleep(30)
    assert (await used(home))[:3] == (300, 0, 3)
    assert ledger.held() == 0


@virtually
async def test_a_run_that_is_left_at_its_very_end_holds_nothing_and_counts_once():
    ledger, records = Flaky(), begun()
    leaving = meter(ledger, records)
    await one_request(leaving)
    end_run, hangs = ledger.end_run, asyncio.Event()

    async def hang(*arguments):
        ledger.end_run = end_run
        await end_run(*arguments)
        await hangs.wait()  # its reply is lost

    ledger.end_run = hang
    ending = asyncio.create_task(leaving.close(has_ended=True))
    await asyncio.sleep(1)
    ending.cancel()
    await asyncio.sleep(90)  # longer than an entry is known
    found = await counted(ledger)
    assert found[:3] == (100, 0, 1)
    assert ledger.held() == 0
    assert leaving._agent_ledger._renewed == {}


@pytest.mark.parametrize("seconds", [5, 9.7, 15, 90])
@virtually
async def test_the_last_use_is_settled_when_the_ledger_is_back(seconds):
    ledger, records = Flaky(), begun()
    ending = meter(ledger, records)
    await one_request(ending)
    ledger.away = {"end_run"}
    asyncio.get_running_loop().call_later(seconds, setattr, ledger, "away", ())
    await ending.close(has_ended=True)
    await asyncio.sleep(100)
    found = await counted(ledger)
    assert found[:3] == (100, 0, 1)
    assert ledger.held() == 0


@pytest.mark.parametrize("is_late", [False, True])
@virtually
async def test_what_a_new_owner_has_counted_the_former_one_does_not_count_too(is_late):
    """The former one stood still, or did not reach the store, when its lease was over."""
    ledger, records = Flaky(), begun()
    former = meter(ledger, records)
    for _ in range(3):
        await one_request(former)
        record_reply(records)
    hanging = await former.begin(ASKED)
    await former.end(hanging, asyncio.CancelledError())
    if is_late:
        ledger.away = {"settle"}
        await former.close(has_ended=False)
        ledger.away = ()
    await one_request(meter(ledger, records))
    if is_late:
        await asyncio.sleep(30)
    else:
        await former.close(has_ended=False)
    found = await counted(ledger)
    assert found.model_calls == 5
    assert ledger.held() == 0


@virtually
async def test_who_leaves_a_run_counts_what_is_on_record_though_nobody_goes_on_with_it():
    ledger, records = Flaky(), begun()
    former = meter(ledger, records)
    await one_request(former)
    record_reply(records)
    await former.close(has_ended=False)
    found = await counted(ledger)
    assert found[:3] == (100, 0, 1)


@virtually
async def test_a_run_ends_after_what_is_settled_late():
    ledger, records = Flaky(), begun()
    ending = meter(ledger, records)
    ledger.away = {"settle"}
    for is_first in (True, False):
        await one_request(ending)
        record_reply(records)
        if is_first:
            await asyncio.sleep(3)  # so that its credit is idle
    closing = asyncio.create_task(ending.close(has_ended=True))
    await asyncio.sleep(1)
    assert "end_run" not in ledger.asked
    closing.cancel()  # another process finds that the run has ended
    await ending._agent_ledger.aclose()
    ledger.away = ()
    await meter(ledger, records).close(has_ended=True)
    found = await counted(ledger)
    assert found[:3] == (200, 0, 2)


@pytest.mark.parametrize("is_late", [False, True])
@virtually
async def test_who_leaves_a_run_counts_what_is_on_no_record_beside_what_is(is_late):
    """Its last reply came too late to be recorded, then a request was cut off."""
    ledger, records = Flaky(), begun()
    for _ in range(2):  # owners
        former = meter(ledger, records)
        for n in range(3):
            await one_request(former)
            if n < 2:
                record_reply(records)
        await former.end(await former.begin(ASKED), asyncio.CancelledError())
        ledger.away = {"settle"} if is_late else ()
        await former.close(has_ended=False)
        ledger.away = ()
        await asyncio.sleep(5)
    last = meter(ledger, records)
    await one_request(last)
    await last.close(has_ended=True)
    found = await counted(ledger)
    assert found.model_calls == 2 * 4 + 1
    assert ledger.held() == 0


@pytest.mark.parametrize("is_done", [False, True])
@virtually
async def test_an_end_that_is_repeated_after_midnight_counts_for_the_day_of_its_credit(is_done):
    clock = Named()
    ledger, records = Flaky(), begun()
    ending = meter(ledger, records, clock)
    await one_request(ending)
    end_run = ledger.end_run

    async def fail(*arguments):
        ledger.end_run = end_run
        if is_done:
            await end_run(*arguments)
            ledger._settled.clear()  # as Redis knows it of each account by itself
        clock.seconds += SECONDS_OF_A_DAY
        raise StoreError("away")

    ledger.end_run = fail
    await ending.close(has_ended=True)
    days = [day_key(clock.now() - ago * SECONDS_OF_A_DAY) for ago in (1, 0)]
    accounts = [Account("perDay", day, Budget(**FAR), 60) for day in days]
    assert [each.model_calls for each in await ledger.used(accounts)] == [1, 0]


@virtually
async def test_what_is_held_is_renewed_as_soon_as_the_store_is_back():
    ledger, records = Flaky(), begun()
    await meter(ledger, records).begin(ASKED)
    for away, seconds in (((), 9.5), ({"renew"}, AHEAD_SECONDS - 13), ((), 3), ({"renew"}, 5)):
        ledger.away = away
        await asyncio.sleep(seconds)
    assert ledger.held() == 1


@virtually
async def test_what_was_used_of_credit_stays_reserved_until_it_is_counted():
    class Watched(Flaky):
        held_at = ()

        async def count_record(self, *arguments):
            self.held_at += (self.held(),)
            await super().count_record(*arguments)

    ledger, records = Watched(), begun()
    former = meter(ledger, records)
    await one_request(former)
    record_reply(records)
    await former.close(has_ended=False)
    assert ledger.held_at == (1,)
    assert ledger.held() == 0


@virtually
async def test_a_request_that_is_cut_off_hides_no_later_use_of_its_run():
    ledger, records, near = Flaky(), begun(), {"tokens": 50_000}
    former = meter(ledger, records, day=near)
    await former.end(await former.begin(ASKED), asyncio.CancelledError())
    await former.close(has_ended=False)
    cut_off = await counted(ledger)
    assert cut_off.tokens > 0
    record_reply(records)  # the next owner's, who dies before it settles
    heir = meter(ledger, records, day=near)
    await heir.close(has_ended=True)
    found = await counted(ledger)
    assert (found.tokens, found.model_calls) == (cut_off.tokens + 100, 2)


@pytest.mark.parametrize("is_cancelled", [False, True])
@virtually
async def test_credit_of_which_nobody_knows_whether_it_was_had_is_given_back(is_cancelled):
    class Silent(Flaky):
        is_silent = True

        async def reserve(self, *arguments):
            found = await super().reserve(*arguments)
            if self.is_silent:
                self.is_silent = False
                if is_cancelled:
                    await asyncio.Event().wait()
                raise StoreError("no reply")
            return found

    ledger = Silent()
    one = meter(ledger, begun())
    beginning = asyncio.create_task(one.begin(ASKED))
    await asyncio.sleep(1)
    if beginning.cancel():
        await asyncio.wait([beginning])
    else:
        call = await beginning
        call.usage = Usage(60, 40)
        await one.end(call, None)
    await one.close(has_ended=True)
    assert ledger.held() == 0
    assert (await counted(ledger)).model_calls == (0 if is_cancelled else 1)
