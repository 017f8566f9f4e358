"""Budgets in runs: what is left decides what is done, alone and with others, whatever happens."""

import asyncio
import json

import pytest
from support.budgeted import call, echo, home_with, log_of, said, used
from support.doubles import (
    CountingClock,
    FunctionAgents,
    ListeningModel,
    facts,
    types,
)
from support.stories import virtually

from diptych.budgets.agent_budgets import AgentBudgets, BudgetTerms, day_key
from diptych.budgets.shared_budget_meter import meter_of
from diptych.core.budget import Budget, SharedBudgets
from diptych.core.codec import Record
from diptych.core.commands import AskModel, MakeCall
from diptych.core.errors import DelegationError, ModelError, StoreError
from diptych.core.events import MessageQueued
from diptych.core.messages import ChildRun, Delegation, Message, Result, Usage, Used
from diptych.core.model_request import ModelRequest
from diptych.core.reducer import replay
from diptych.core.spending import used_by
from diptych.core.state import Run
from diptych.policy.rules import Policy, Rule
from diptych.ports import Delta, Model, Notice, Reply
from diptych.ports.budgets import RESERVED_SECONDS, Account
from diptych.runs.request import RunRequest
from diptych.stores.memory.budgets import MemoryLedger

DAY = day_key(CountingClock().now())


def end_of(items):
    return (items[-1].event_type, items[-1].metadata.get("code"), items[-1].content)


# One run


@virtually
async def test_a_run_ends_when_its_tokens_are_used_and_says_which_limit():
    home = home_with(call(n=1), call(n=2), "never asked", run={"tokens": 200}, tools={"echo": echo})
    items = await home.ask()
    assert end_of(items) == (
        "failed",
        "budget_exhausted",
        "the run has used up budget.tokens: 200 of 200 tokens",
    )
    assert len(home.model.requests) == 2
    assert types(items).count("failed") == 1


@virtually
async def test_a_tool_call_beyond_is_never_made_and_the_model_goes_on():
    home = home_with(
        f"[{call(n=1)['content']}, {call(n=2)['content']}, {call(n=3)['content']}]",
        *("{}", "Two of three."),
        run={"tool_calls": 2},
        tools={"echo": echo},
    )
    items = await home.ask()
    assert [arguments["n"] for _, arguments in home.tools.called] == [1, 2]
    assert "budget.toolCalls is used up" in home.model.requests[1][-1].content
    assert facts(items)[-1] == "agent_response"


@virtually
async def test_who_watches_is_told_at_80_percent_and_at_the_end():
    home = home_with(
        call(n=1), said("{}"), said("Done."), run={"tokens": 250}, tools={"echo": echo}
    )
    items = await home.ask()
    warned = [i for i in items if isinstance(i, Notice) and i.type.startswith("budget")]
    total = warned[0].fields["used"] + 100
    assert 200 <= total - 100 < 250
    assert warned == [
        Notice("budget_warning", {"budget": "budget.tokens", "used": total - 100, "limit": 250}),
        Notice("budget", {"used": {"tokens": total}, "limits": {"tokens": 250}}),
    ]


@virtually
async def test_a_streamed_answer_whose_usage_nobody_says_counts_as_what_was_told():
    class Slow(ListeningModel):
        async def stream(self, request):
            async for delta in super().stream(request):
                for word in delta.text.split():
                    await asyncio.sleep(0.01)
                    yield Delta(f"{word} ")

    answer = " ".join(f"Sentence {n} is here." for n in range(500))
    home = home_with(model=Slow("{}", answer), run={"tokens": 100_000})
    items = await home.ask()
    told = [i for i in items if getattr(i, "event_type", "") == "model_reply"][-1]
    assert told.metadata["usage"]["completion_tokens"] > 1000


# Calls that are repeated


NATIVE = {"content": "", "tool_calls": [{"name": "echo", "arguments": {"n": 1}}]}


@pytest.mark.parametrize("reply", [call(n=1), NATIVE], ids=["json", "native"])
@virtually
async def test_an_effect_is_not_had_a_third_time_and_the_steps_go_on(reply):
    home = home_with(*[reply] * 6, tools={"echo": echo}, max_steps=5)
    items = await home.ask()
    assert end_of(items)[::2] == ("max_steps", "Reached maximum reasoning steps (5)")
    assert len(home.tools.called) == 2
    told = [i.content for i in items if getattr(i, "event_type", "") == "tool_error"]
    assert [text[:28] for text in told] == ["repeated: this call was made"] * 3
    assert facts(items).count("tool_call") == 2


@pytest.mark.parametrize(("repeat", "made"), [("deny", 1), (None, 2), ("allow", 4)])
@virtually
async def test_a_rule_says_what_becomes_of_a_repeated_effect(repeat, made):
    policy = Policy((Rule("tool", "*", "allow", repeat=repeat),))
    home = home_with(*[call(n=1)] * 4, "{}", "Done.", tools={"echo": echo}, policy=policy)
    items = await home.ask()
    assert len(home.tools.called) == made
    told = [i.content for i in items if getattr(i, "event_type", "") == "tool_error"]
    assert [text[:9] for text in told] == ["repeated:"] * (4 - made)
    assert facts(items)[-1] == "agent_response"


# Budgets that runs share


@virtually
async def test_what_runs_of_a_day_use_is_added_up_and_ends_the_next_one():
    home = home_with(*["{}", said("Hi.")], day={"tokens": 100})
    first = await home.ask(session_id="a")
    assert first[-1].event_type == "completed"
    end = end_of(await home.ask(session_id="b"))
    assert end[:2] == ("failed", "budget_exhausted")
    assert "the agent has for today used up budget.perDay.tokens" in end[2]


@virtually
async def test_a_session_s_budget_is_its_own():
    home = home_with(*["{}", said("Hi.")], session={"model_calls": 2})
    assert (await home.ask(session_id="a"))[-1].event_type == "completed"
    assert (await home.ask(session_id="b"))[-1].event_type == "completed"
    assert "budget.perSession.modelCalls" in end_of(await home.ask(session_id="a"))[2]
    assert home.budgets.settings.budget == Budget()


class Slow(Model):
    """A model that takes a second and uses 100 tokens; counts how often it was asked."""

    def __init__(self, tokens=100):
        self.asked = 0
        self.tokens = tokens

    async def complete(self, request):
        self.asked += 1
        await asyncio.sleep(1)
        return Reply("{}", Usage(self.tokens - 10, 10))

    async def stream(self, request):
        self.asked += 1
        await asyncio.sleep(1)
        yield Delta("Hi.")
        yield Delta(usage=Usage(self.tokens - 10, 10), finish_reason="stop")


@virtually
async def test_a_hundred_runs_at_once_go_over_by_one_call_at_most():
    home = home_with(model=Slow(), day={"tokens": 1_000}, reply_tokens=20)
    all_items = await asyncio.gather(*(home.ask() for _ in range(100)))
    total = (await used(home)).tokens
    assert 1_000 <= total < 1_100
    assert home.model.asked * 100 == total
    ends = [end_of(items)[:2] for items in all_items]
    assert set(ends) <= {("failed", "budget_exhausted"), ("completed", None)}
    assert all(types(items).count(items[-1].event_type) == 1 for items in all_items)


@virtually
async def test_runs_wait_for_what_others_have_reserved_and_then_go_on():
    home = home_with(model=Slow(), day={"tokens": 500})
    ends = await asyncio.gather(home.ask(), home.ask())
    assert [end_of(items)[0] for items in ends] == ["completed"] * 2
    assert (await used(home)).tokens == 400


@virtually
async def test_a_failed_request_uses_nothing_and_holds_nothing():
    class Broken(Model):
        async def complete(self, request):
            raise ModelError("model_unreachable", "no connection")

        stream = complete

    home = home_with(model=Broken(), day={"tokens": 100})
    assert end_of(await home.ask())[1] == "model_unreachable"
    assert await used(home) == Used()
    day = Account("perDay", DAY, Budget(tokens=100), 60)
    assert (await home.ledger.reserve([day], "e", Used(tokens=100))).outcome == "ok"


@virtually
async def test_a_request_that_is_cancelled_counts_as_what_was_sent():
    home = home_with(model=Slow(), day={"tokens": 10_000})
    entry = await home.runs.start(RunRequest((Message("user", "hi"),)))
    await asyncio.sleep(0.5)
    await home.runs.cancel(entry.run_id)
    await home.told(entry.run_id)
    found = await used(home)
    assert 0 < found.tokens < 1_000
    assert found.model_calls == 1


@pytest.mark.parametrize("written", ["", '{"tool": "echo", '])
@virtually
async def test_a_call_that_the_server_cannot_read_counts_alike_for_the_run_and_for_the_day(written):
    class Unreadable(ListeningModel):
        async def complete(self, request):
            if request.index == 0:
                error = ModelError("malformed_call", "the server cannot read it")
                error.written = written
                raise error
            return await super().complete(request)

    model = Unreadable("never played", said("{}"), said("Hello!"))
    home = home_with(model=model, run={"tokens": 10_000}, day={"tokens": 10_000})
    items = await home.ask()
    assert end_of(items)[0] == "completed"
    run = replay(await home.events(items[-1].run_id))
    of_the_day = await used(home)
    assert (run.model_calls, of_the_day.model_calls) == (3, 3)
    assert used_by(run).tokens == of_the_day.tokens > 200


@virtually
async def test_time_is_counted_as_runs_execute():
    clock = CountingClock()

    class Ticking(Slow):
        async def complete(self, request):
            clock.seconds += 1
            return await super().complete(request)

        async def stream(self, request):
            clock.seconds += 1
            async for delta in super().stream(request):
                yield delta

    home = home_with(model=Ticking(), session={"wall_clock": 1_500}, clock=clock)
    assert end_of(await home.ask(session_id="a"))[0] == "completed"
    assert (await used(home, "perSession", "a")).wall_clock == 2_000
    assert "budget.perSession.wallClock" in end_of(await home.ask(session_id="a"))[2]


# A ledger that is away


class Flaky(MemoryLedger):
    """A ledger that can be away."""

    is_away = False

    async def reserve(self, *arguments):
        if self.is_away:
            raise StoreError("away")
        return await super().reserve(*arguments)

    async def spend(self, *arguments):
        if self.is_away:
            raise StoreError("away")
        return await super().spend(*arguments)

    async def settle(self, *arguments):
        if self.is_away:
            raise StoreError("away")
        return await super().settle(*arguments)


class BreaksLedger(Slow):
    """Takes the ledger away when it is asked for the answer."""

    def __init__(self, ledger):
        super().__init__()
        self._ledger = ledger

    async def stream(self, request):
        self._ledger.is_away = True
        async for delta in super().stream(request):
            yield delta


@virtually
async def test_no_call_is_made_while_nobody_can_count_and_the_run_says_so():
    ledger = Flaky(asyncio.get_running_loop().time)
    home = home_with("{}", "Hi.", day={"tokens": 1_000}, ledger=ledger)
    ledger.is_away = True
    items = await home.ask()
    assert end_of(items)[:2] == ("failed", "budget_unavailable")
    assert home.model.requests == []


@virtually
async def test_a_ledger_that_comes_back_is_waited_for():
    ledger = Flaky(asyncio.get_running_loop().time)
    home = home_with("{}", "Hi.", day={"tokens": 1_000}, ledger=ledger)
    ledger.is_away = True
    asyncio.get_running_loop().call_later(5, setattr, ledger, "is_away", False)
    assert end_of(await home.ask())[0] == "completed"


@virtually
async def test_what_was_used_while_the_ledger_was_away_is_settled_when_it_is_back():
    ledger = Flaky(asyncio.get_running_loop().time)
    home = home_with(model=BreaksLedger(ledger), day={"tokens": 10_000}, ledger=ledger)
    await home.ask()
    assert (await used(home)).tokens == 100
    await asyncio.sleep(30)
    ledger.is_away = False
    await asyncio.sleep(5)
    assert (await used(home)).tokens == 200


# What others hold, and the run's own delegations


@virtually
async def test_a_step_does_not_wait_for_what_its_own_delegations_hold():
    async def work(request, progress):
        return "done"

    calls = [{"agent": "worker", "task": "work"}, {"tool": "echo", "arguments": {}}]
    replies = said(json.dumps(calls)), "{}", "Hi."
    home = home_with(*replies, tools={"echo": echo}, agents={"worker": work}, day={"tool_calls": 1})
    items = await home.ask()
    assert end_of(items)[0] == "completed"
    denied = next(i for i in items if getattr(i, "event_type", "") == "tool_error")
    assert "the rest of budget.perDay.toolCalls is reserved" in denied.content
    assert home.tools.called == []


@virtually
async def test_a_run_whose_call_waits_for_what_others_hold_can_be_cancelled():
    home = home_with(call(), "{}", "Hi.", tools={"echo": echo}, day={"tool_calls": 1})
    day = [Account("perDay", DAY, Budget(tool_calls=1), 100_000)]
    await home.ledger.reserve(day, "of another run", Used(tool_calls=1))
    run_id = (await home.runs.start(RunRequest((Message("user", "hi"),)))).run_id
    await asyncio.sleep(5)
    begun = asyncio.get_running_loop().time()
    assert (await home.runs.cancel(run_id)).status == "aborted"
    assert asyncio.get_running_loop().time() < begun + 1
    assert home.tools.called == []


@pytest.mark.parametrize("is_steered", [False, True])
@virtually
async def test_calls_that_come_while_others_wait_are_counted_after_them_and_none_is_lost(
    is_steered,
):
    async def first(**_):
        await asyncio.sleep(2)
        return "one"

    calls = [
        {"id": "a", "tool": "first", "arguments": {}},
        {"id": "b", "tool": "first", "arguments": {"n": 2}},
        {"tool": "echo", "after": ["a"], "arguments": {"n": 1}},
        {"tool": "echo", "after": ["b"], "arguments": {"n": 2}},
    ]
    home = home_with(
        *(json.dumps(calls), "{}", "Hi."),
        run={"tool_calls": 4},
        day={"tool_calls": 5},
        tools={"first": first, "echo": echo},
    )
    day = [Account("perDay", DAY, Budget(tool_calls=5), 100_000)]
    for other in "abc":
        await home.ledger.reserve(day, other, Used(tool_calls=1))
    asking = asyncio.create_task(home.ask())
    await asyncio.sleep(10)
    assert len(home.tools.called) == 2
    if is_steered:  # what is to be counted next is not counted any more
        (run_id,) = home.store._runs
        await home.runs.send_message(run_id, MessageQueued("no more", "m-1"))
    for other in "abc":
        await home.ledger.settle(day, other, "", Used())
    assert end_of(await asking)[0] == "completed"
    echoes = sorted(a["n"] for name, a in home.tools.called if name == "echo")
    assert echoes == ([] if is_steered else [1, 2])
    assert (await home.ledger.used(day))[0].tool_calls == (3 if is_steered else 4)


@pytest.mark.parametrize("what", ["reserve", "reserve_share"])
@virtually
async def test_what_was_reserved_for_a_call_that_was_cancelled_meanwhile_is_given_back(what):
    class Slow(MemoryLedger):
        """It reserves at once, and says so later."""

        async def reserve(self, *arguments):
            found = await super().reserve(*arguments)
            await asyncio.sleep(60 * (what == "reserve"))
            return found

        async def reserve_share(self, *arguments):
            found = await super().reserve_share(*arguments)
            await asyncio.sleep(60 * (what == "reserve_share"))
            return found

    async def work(request, progress):
        return "done"

    ledger = Slow(asyncio.get_running_loop().time)
    home = home_with(
        *(DELEGATE, "{}", "Hi."), ledger=ledger, agents={"worker": work}, day={"tokens": 90_000}
    )
    run_id = (await home.runs.start(RunRequest((Message("user", "hi"),)))).run_id
    await asyncio.sleep(5)
    (row,) = ledger._accounts.values()
    assert row.reserved
    assert (await home.runs.cancel(run_id)).status == "aborted"
    await asyncio.sleep(1)
    assert not row.reserved


# The shares of delegations


DELEGATE = json.dumps({"agent": "worker", "task": "work"})


@virtually
async def test_two_runs_that_delegate_at_once_never_share_the_same():
    given, most = [], []

    async def work(request, progress):
        given.append(request.budget.tool_calls)
        most.append(sum(given))
        await asyncio.sleep(1)
        given.remove(request.budget.tool_calls)
        return "done"

    limits = {"run": {"tool_calls": 4}, "day": {"tool_calls": 6}}
    replies = said(DELEGATE), said(DELEGATE), "{}", "{}", "Hi.", "Hi."
    home = home_with(*replies, agents={"worker": work}, **limits)
    ends = await asyncio.gather(home.ask(session_id="a"), home.ask(session_id="b"))
    assert [end_of(items)[0] for items in ends] == ["completed"] * 2
    assert max(most) == 6
    held = next(iter(home.ledger._accounts.values())).reserved
    assert held == {}


@pytest.mark.parametrize("tool_calls", [None, 3])
@virtually
async def test_a_delegation_gets_half_of_what_its_run_does_not_limit(tool_calls):
    given = []

    async def work(request, progress):
        given.append(request.budget)
        return "done"

    session, day = {"tokens": 1_000_000}, {"tokens": 300_000, "tool_calls": 8, "model_calls": 5_000}
    home = home_with(
        DELEGATE,
        "{}",
        "Hi.",
        run={"tool_calls": tool_calls},
        session=session,
        day=day,
        agents={"worker": work},
    )
    assert end_of(await home.ask())[0] == "completed"
    [budget] = given
    assert budget.tool_calls == (tool_calls or 4)
    assert 149_000 < budget.tokens <= 150_000
    assert 2_490 < budget.model_calls <= 2_500


@pytest.mark.parametrize("claim", [None, Used(tokens=10**12, tool_calls=10**6)])
@pytest.mark.parametrize("limits", [{"day": {"tokens": 300_000}}, {"run": {"tokens": 300_000}}])
@virtually
async def test_an_agent_without_conversation_counts_for_nothing_whatever_it_says(limits, claim):
    budgets = []

    async def get_lost(request, progress):
        budgets.append(request.budget)
        child = ChildRun("http://worker", "task-1", "working", Usage(10**9, 0), used=claim)
        progress(child)
        error = DelegationError("timeout", "there was no answer")
        error.child = child
        raise error

    agents = FunctionAgents({"worker": get_lost}, gets_conversation=False)
    home = home_with(said(DELEGATE), said("{}"), said("Hi."), agents=agents, **limits)
    items = await home.ask()
    assert end_of(items)[0] == "completed"
    assert budgets == [Budget()]
    assert "delegation_error" in types(items)
    if "day" in limits:
        assert (await used(home)).tokens == 300
        assert not next(iter(home.ledger._accounts.values())).reserved


def _meter(ledger, records=()):
    """Count a run that shares a day's six tool calls, as one more owner of it does."""
    clock = CountingClock()
    terms = BudgetTerms(shared=SharedBudgets(per_day=Budget(tool_calls=6)))
    budgets = AgentBudgets(terms, ledger, clock)
    return meter_of(budgets, log_of(records))


async def _share(meter):
    call = MakeCall(Delegation("call_1_1", "worker", "work"), 1)
    run = Run(calls=(call.call,))
    assert await meter.charge_calls([call], run, lambda _: None) == [call]
    return meter.shares["call_1_1"]


@virtually
async def test_the_share_of_a_dead_owners_delegation_is_free_when_its_run_ends_at_once():
    ledger = MemoryLedger(asyncio.get_running_loop().time)
    former, next_owner = _meter(ledger), _meter(ledger)
    await _share(former)
    await former.close(has_ended=False)
    (row,) = ledger._accounts.values()
    assert row.reserved
    next_owner.take_up(Delegation("call_1_1", "worker", "work"))
    await next_owner.close(has_ended=True)
    assert not row.reserved


@virtually
async def test_a_share_stays_while_a_run_changes_its_owner():
    ledger = MemoryLedger(asyncio.get_running_loop().time)
    day = Account("perDay", DAY, Budget(tool_calls=6), 100_000)
    former, next_owner = _meter(ledger), _meter(ledger)
    share = await _share(former)
    await former.close(has_ended=False)
    await asyncio.sleep(20)
    again = MakeCall(Delegation("call_1_1", "worker", "work"), 1, is_retry=True)
    run = Run(calls=(again.call,), shares={"call_1_1": share})
    assert await next_owner.charge_calls([again], run, lambda _: None) == [again]
    await asyncio.sleep(60)
    left = await ledger.reserve_share([day], "of another run", Budget(tool_calls=6), 1)
    assert left.amount == Used(tool_calls=6 - share.tool_calls)
    next_owner.end_child(Result("call_1_1", "done"), Used(tool_calls=1))
    await next_owner.close(has_ended=False)
    assert await ledger.used([day]) == [Used(tool_calls=1)]
    assert list(ledger._accounts[DAY].reserved) == ["of another run"]


@virtually
@pytest.mark.parametrize("has_ended", [False, True])
async def test_whoever_cancels_the_end_of_the_counting_nothing_stays_reserved(has_ended):
    ledger = Flaky(asyncio.get_running_loop().time)
    meter = _meter(ledger)
    await _share(meter)
    ledger.is_away = True
    for steps in range(4):
        closing = asyncio.create_task(meter.close(has_ended=has_ended))
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
    await asyncio.sleep(RESERVED_SECONDS + 1)
    ledger.is_away = False
    day = Account("perDay", DAY, Budget(tool_calls=6), 100_000)
    assert (await ledger.reserve_share([day], "e", Budget(tool_calls=6), 1)).amount == Used(
        tool_calls=6
    )


@virtually
async def test_the_share_of_a_lost_child_is_counted_before_it_is_free():
    class Watched(MemoryLedger):
        async def settle(self, accounts, entry, run_id, used):
            if "/share/" in entry:
                seen.append((await self.used(accounts))[0].tool_calls)
            return await super().settle(accounts, entry, run_id, used)

    async def hang(request, progress):
        await asyncio.Event().wait()

    seen = []
    ledger = Watched(asyncio.get_running_loop().time)
    limits = {"run": {"tool_calls": 4}, "day": {"tool_calls": 6}, "ledger": ledger}
    home = home_with(said(DELEGATE), agents={"worker": hang}, **limits)
    run_id = (await home.runs.start(RunRequest((Message("user", "hi"),)))).run_id
    await asyncio.sleep(1)
    await home.runs.cancel(run_id)
    await home.told(run_id)
    assert seen == [4]
    assert (await used(home)).tool_calls == 4


@virtually
async def test_a_reply_after_midnight_that_was_asked_for_before_is_not_counted_for_both_days():
    clock, ledger = CountingClock(), MemoryLedger(asyncio.get_running_loop().time)
    clock.seconds = midnight = 3 * 86_400.0
    clock.seconds -= 1
    budgets = AgentBudgets(
        BudgetTerms(shared=SharedBudgets(per_day=Budget(model_calls=6))), ledger, clock
    )
    records = [Record("run-1", "talk", 1, "user_message", midnight - 1, "hi", {})]
    former = meter_of(budgets, log_of(records))
    asked = await former.begin(AskModel(ModelRequest((Message("user", "hi"),)), "actions"))
    clock.seconds = midnight + 1
    asked.usage = Usage(60, 40)
    await former.end(asked, None)
    about = {"usage": {"prompt_tokens": 60, "completion_tokens": 40}}
    records.append(Record("run-1", "talk", 2, "model_reply", midnight + 1, "{}", about))
    await meter_of(budgets, log_of(records)).close(has_ended=True)
    keys = (day_key(midnight - 1), day_key(midnight + 1))
    days = [Account("perDay", key, Budget(model_calls=6), 100_000) for key in keys]
    assert [used.model_calls for used in await ledger.used(days)] == [1, 0]
