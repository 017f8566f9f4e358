"""Approvals at the command line: `run` asks the person, and other terminals decide, too."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.command_line import at_a_terminal, diptych

from diptych.manifest.settings import AgentConfig, ToolServerConfig
from diptych.policy.rules import Policy, Rule
from diptych.serve.process import ListenAddress, Sockets, serve_agents

CALL = json.dumps({"tool": "pay", "arguments": {"amount": 5}})
SCRIPT = json.dumps([CALL, "{}", "That is that."])
pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def cashier() -> AsyncIterator[tuple[str, list[int]]]:
    """An agent whose payments somebody must approve; gives its URL and what it has paid."""
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    config = AgentConfig(
        "cashier",
        mock_responses=SCRIPT,
        tools=(ToolServerConfig("bank", functions=(pay,)),),
        policy=Policy((Rule("tool", "pay", "ask", reason="money"),)),
    )
    sockets = Sockets(ListenAddress(port=0), 1)
    async with serve_agents([config], sockets) as sites:
        await sites[0].wait_for_first_connect()
        yield sockets.urls[0], paid


async def test_without_a_terminal_run_exits_with_4_and_another_command_decides() -> None:
    async with cashier() as (url, paid):
        code, out, err = await diptych("run", url, "pay")
        assert (code, out) == (4, "")
        assert "waits for a decision" in err
        code, out, _ = await diptych("approvals", url)
        assert "pay(amount=5) · money" in out
        run_id, call_id, *_ = out.split()
        code, _, err = await diptych(
            "approve", run_id, call_id, "--at", url, "--edit", '{"amount": "much"}'
        )
        assert (code, paid) == (1, [])
        assert "422" in err
        code, _, err = await diptych("approve", run_id, call_id, "--at", url)
        assert (code, err) == (0, "call_1_1: approve\n")
        code, out, err = await diptych("attach", run_id, "--at", url)
        assert (code, paid) == (0, [5])
        code, _, err = await diptych("reject", run_id, call_id, "--at", url)
        assert code == 1
        assert "409" in err
        code, out, err = await diptych("approvals", url)
        assert (code, out, err) == (0, "", "no call that you may see waits for a decision\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Expecting property name"),
        ("[1]", "must be a JSON object"),
        ('{"amount": NaN}', "NaN is not JSON"),
        ('{"amount": 5, "amount": 500}', 'the key "amount" appears twice'),
        ('{"amount": 123456789012345678901}', "too large for 64 bits"),
    ],
)
@pytest.mark.parametrize("option", ["--edit", "--replace"])
def test_json_that_another_reader_could_read_differently_is_no_decision(
    typed: Callable[..., Any], option: str, text: str, problem: str
) -> None:
    outcome = typed("approve", "run-1", "call_1_1", option, text)
    assert outcome.code == 2
    assert f"error: {option}: " in outcome.err
    assert problem in outcome.err


@pytest.mark.parametrize(
    ("typed", "paid", "shown"),
    [("y", [5], "paid 5"), ("too much", [], "denied: too much")],
)
async def test_at_a_terminal_run_asks(typed: str, paid: list[int], shown: str) -> None:
    async with cashier() as (url, done):
        code, seen = await at_a_terminal({"why not:": typed}, "run", url, "pay")
        assert code == 0, seen
        assert shown in seen
        assert "? pay(amount=5) (call_1_1): make this call?" in seen, "of several, which is it?"
        assert "That is that." in seen
        assert done == paid


async def test_no_input_asks_nobody() -> None:
    async with cashier() as (url, paid):
        code, seen = await at_a_terminal({"why not:": "y"}, "run", "--no-input", url, "pay")
        assert (code, paid) == (4, [])
        assert "why not:" not in seen
        assert f"call_1_1 --at {url}, or diptych reject" in " ".join(seen.split())
