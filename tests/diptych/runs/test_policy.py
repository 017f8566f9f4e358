"""A policy in a run: a denied call is never made, and the model reads why."""

import asyncio

from support.doubles import facts, house
from support.stories import virtually

from diptych.core.run_settings import RunSettings
from diptych.policy.rules import Policy, Rule
from diptych.runs.definition import AgentDefinition
from diptych_cel.expressions import check_expression

NO_PAYING = Policy((Rule("tool", "pay", "deny", reason="no payments here"),))
LOOK = '{"tool": "look"}'


async def pay(amount):
    return f"paid {amount}"


async def look():
    return "seen"


@virtually
async def test_siblings_of_a_denied_call_are_made_and_its_dependents_are_skipped():
    reply = (
        '[{"id": "p", "tool": "pay", "arguments": {"amount": 5}}, {"tool": "look"},'
        ' {"id": "q", "after": ["p"], "tool": "look"}]'
    )
    home = house(reply, "{}", "Done.", tools={"pay": pay, "look": look}, policy=NO_PAYING)
    run_id = (await home.ask())[0].run_id
    texts = [e.result.text for e in await home.events(run_id) if hasattr(e, "result")]
    assert sorted(texts) == ["denied: no payments here", "seen", "skipped: p failed"]
    assert [name for name, _ in home.tools.called] == ["look"]


@virtually
async def test_arguments_are_judged_with_their_references_filled():
    when = check_expression("args.amount == 'seen'", "tool")
    policy = Policy((Rule("tool", "pay", "deny", when, "not that"),))
    reply = '[{"id": "a", "tool": "look"}, {"tool": "pay", "arguments": {"amount": "${a}"}}]'
    home = house(reply, "{}", "Done.", tools={"pay": pay, "look": look}, policy=policy)
    await home.ask()
    assert [name for name, _ in home.tools.called] == ["look"]


@virtually
async def test_denied_calls_take_no_slot():
    """Ten denied calls and one that is made, one at a time: all end, none waits for a slot."""
    settings = RunSettings(max_parallel_calls=1)
    calls = [f'{{"tool": "pay", "arguments": {{"amount": {n}}}}}' for n in range(10)]
    reply = "[" + ", ".join([*calls[:5], LOOK, *calls[5:]]) + "]"
    home = house(
        *(reply, "{}", "Done."),
        tools={"pay": pay, "look": look},
        policy=NO_PAYING,
        definition=AgentDefinition("", settings),
    )
    async with asyncio.timeout(5):
        items = await home.ask()
    assert facts(items).count("tool_error") == 10
    assert facts(items).count("tool_result") == 1
