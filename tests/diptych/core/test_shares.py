"""What a run has left is shared among its delegations, and what they use comes back. Pure."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles import catalog
from support.feeding import feed, started

from diptych.core.budget import Budget, Prices
from diptych.core.codec import decode, encode
from diptych.core.commands import MakeCall
from diptych.core.events import Called, Replied, Returned
from diptych.core.json_values import decode_catalog, encode_catalog
from diptych.core.messages import ChildRun, Delegation, Result, ToolCall, Usage, Used
from diptych.core.run_settings import RunSettings
from diptych.core.spending import child_use, denied_call, shares, used_by
from diptych.core.state import updated

PRICES = Prices(Decimal(1), Decimal(2))
AGENTS = catalog(agents=("a", "b", "c"))


def delegating(count, prices=None, **limits):
    """A run whose model has asked for delegations; gives it and their commands."""
    settings = RunSettings(9, budget=Budget(**limits), prices=prices)
    run, _ = started(settings=settings, with_offers=AGENTS)
    asked = [f'{{"agent": "{"abc"[n % 3]}", "task": "task {n}"}}' for n in range(count)]
    run, commands = feed(run, Replied(f"[{', '.join(asked)}]"))
    return run, [c for c in commands if isinstance(c, MakeCall)]


def begun(run, commands):
    """The delegations are sent, each with its share."""
    given_ = shares(run, commands)
    for command in commands:
        call = command.call
        run, _ = feed(run, Called(call, run.step, f"context-{call.id}", given_[call.id]))
    return run


def came_back(run, call, tokens, error=None, **about):
    usage = Usage(tokens, 0)
    child = ChildRun("http://x", "task-1", "completed", usage=usage, **about)
    result = Result(call.id, "done", error=error, child=child)
    return feed(run, Returned(result, "agent", call.agent))


@settings(deadline=None)
@given(st.integers(1, 5_000), st.integers(1, 8))
def test_together_they_are_given_what_is_left_and_no_more(tokens, count):
    run, commands = delegating(count, tokens=tokens)
    found = [share.tokens for share in shares(run, commands).values()]
    assert sum(found) == tokens
    assert max(found) - min(found) <= 1


def test_one_that_begins_later_gets_of_what_is_not_given_yet():
    run, commands = delegating(3, tokens=900)
    run = begun(run, commands[:2])
    assert [b.tokens for b in run.shares.values()] == [300, 300]
    assert shares(run, commands[2:])[commands[2].call.id].tokens == 300
    run, _ = came_back(run, commands[0].call, 100)
    assert used_by(run).tokens == 100
    assert shares(run, commands[2:])[commands[2].call.id].tokens == 500


def test_what_a_former_owner_has_begun_takes_nothing_of_the_next_call_s():
    run, commands = delegating(2, tokens=1_000)
    run = begun(run, commands[:1])
    both = [replace(commands[0], is_retry=True), commands[1]]
    assert {name: share.tokens for name, share in shares(run, both).items()} == {"call_1_2": 500}
    assert denied_call(run, both[1], both[:1]) is None
    tool = MakeCall(ToolCall("call_1_3", "echo", {}), 1)
    run = updated(run, budget=Budget(tool_calls=2), tool_calls=1)
    assert denied_call(run, tool, [replace(tool, is_retry=True)]) is None
    assert denied_call(run, tool, [tool]) is not None


def test_an_agent_without_conversation_gets_no_share_and_takes_none_from_others():
    run, commands = delegating(3, tokens=1_000)
    stranger = replace(run.catalog.agent("b"), gets_conversation=False)
    agents = tuple(stranger if peer.name == "b" else peer for peer in run.catalog.agents)
    run = updated(run, catalog=replace(run.catalog, agents=agents))
    assert decode_catalog(json.loads(json.dumps(encode_catalog(run.catalog)))) == run.catalog
    found = shares(run, commands)
    assert {name: share.tokens for name, share in found.items()} == {
        "call_1_1": 500,
        "call_1_3": 500,
    }
    assert denied_call(updated(run, budget=Budget(steps=1)), commands[1], []) is None
    call = commands[1].call
    run, _ = feed(run, Called(call, 1, "context", found.get(call.id, Budget())))
    run, _ = feed(run, Returned(Result(call.id, "?", error="timeout"), "agent", "b"))
    assert used_by(run) == Used(steps=1, model_calls=1)


def test_a_delegation_for_which_nothing_is_left_is_denied():
    run, commands = delegating(3, tokens=2, model_calls=50)
    outcomes = [denied_call(run, command, commands[:n]) for n, command in enumerate(commands)]
    assert outcomes[:2] == [None, None]
    assert outcomes[2].result.error == "denied"
    assert "budget.tokens is used up, or given to other agents" in outcomes[2].result.text


def test_what_children_use_counts_for_the_parent_and_is_on_record():
    run, [command] = delegating(1, tokens=1_000, prices=PRICES)
    run = begun(run, [command])
    used = Used(400, Decimal("0.5"), 3, 2, 1)
    run, _ = came_back(run, command.call, 400, used=used)
    assert run.delegated == used
    child = ChildRun("http://x", "t", "completed", usage=Usage(400, 0), used=used)
    event = Returned(Result("call_1_1", "done", child=child), "agent", "a")
    assert decode(*encode(event), lambda key: b"") == event
    called = Called(Delegation("call_1_1", "a", "x"), 1, "c", Budget(tokens=5, cost=Decimal("0.1")))
    assert decode(*encode(called), lambda key: b"") == called


def test_tokens_without_a_price_are_counted_at_ours():
    run, [command] = delegating(1, cost=Decimal(5), prices=PRICES)
    run, _ = came_back(begun(run, [command]), command.call, 1_000_000)
    assert run.delegated.cost == Decimal(1)


@pytest.mark.parametrize("kind", ["unknown", "timeout", "interrupted"])
def test_a_child_that_is_lost_without_a_word_counts_as_all_that_it_was_given(kind):
    share = Budget(tokens=300, steps=2)
    lost = Result("call_1_1", "?", error=kind)
    assert child_use(lost, share, None) == Used(tokens=300, steps=2)
    said = replace(lost, child=ChildRun("http://x", "t", "working", usage=Usage(120, 0)))
    assert child_use(said, share, None) == Used(tokens=120)
