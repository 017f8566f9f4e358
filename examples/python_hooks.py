"""An agent in Python whose own rules stand around its calls: `python python_hooks.py`.

`before_call` caps what is paid, `after_call` hides a number, `validate_answer` has the answer
given again, and `context` tells the time without it being recorded. The replies are a script.
"""

import asyncio
import json
import re
from datetime import UTC, datetime

from diptych import Agent, CallInfo, Deny, ResultInfo, RunInfo

MOST = 50  # euros at a time
EACH = ("Ada", "Eve")


def pay(to: str, amount: int) -> str:
    """Pay an amount of euros to somebody."""
    return f"Paid {amount} € to {to}, account DE89370400440532013000."


def cap(call: CallInfo) -> dict[str, object] | Deny | None:
    """Pay at most 50 at a time, and nothing to strangers."""
    if call.arguments["to"] != "Ada":
        return Deny(f"{call.arguments['to']} is nobody we pay")
    if call.arguments["amount"] > MOST:
        return {**call.arguments, "amount": MOST}
    return None


async def hide_accounts(_: CallInfo, result: ResultInfo) -> str:
    """Hide account numbers from the model and the record."""
    return re.sub(r"DE\d{20}", "DE…", result.text)


def has_thanks(answer: str) -> str | None:
    """Have every answer end with thanks."""
    return None if "thank" in answer.lower() else "end with a word of thanks"


def clock(_: RunInfo) -> str:
    """Tell the model what time it is."""
    return f"It is {datetime.now(UTC):%H:%M} UTC."


async def main() -> None:
    """Ask the agent to pay, and print its answer."""
    agent = Agent(
        name="cashier",
        tools=[pay],
        before_call=cap,
        after_call=hide_accounts,
        validate_answer=has_thanks,
        context=clock,
        mock_responses=[
            json.dumps([{"tool": "pay", "arguments": {"to": to, "amount": 80}} for to in EACH]),
            "{}",
            "Ada has 50 €; Eve is nobody we pay.",
            "Ada has 50 €; Eve is nobody we pay. Thank you!",
        ],
    )
    print(await agent.run("Pay Ada and Eve 80 € each."))


if __name__ == "__main__":
    asyncio.run(main())
