"""A house whose runs have budgets, and replies that say what they used."""

import asyncio
import json
from types import SimpleNamespace

from support.doubles import CountingClock, house

from diptych.budgets.agent_budgets import AgentBudgets, BudgetTerms
from diptych.core.budget import Budget, SharedBudgets
from diptych.core.run_settings import RunSettings
from diptych.runs.definition import AgentDefinition
from diptych.stores.memory.budgets import MemoryLedger


def said(text, prompt=60, completion=40):
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"content": text, "usage": usage}


def call(name="echo", **arguments):
    return said(json.dumps({"tool": name, "arguments": arguments}))


async def echo(**arguments):
    return f"echo {arguments}"


def log_of(records=(), run_id="run-1"):
    """The log of a run, as what counts it knows it."""
    return SimpleNamespace(
        run_id=run_id, session_id="talk", records=records, notify=lambda notice: None
    )


def home_with(*replies, run=None, session=None, day=None, ledger=None, **rest):
    """A house whose runs have these limits; its ledger is `home.ledger`."""
    settings = RunSettings(
        rest.pop("max_steps", 9), budget=Budget(**(run or {})), prices=rest.pop("prices", None)
    )
    shared = SharedBudgets(Budget(**(session or {})), Budget(**(day or {})))
    loop = asyncio.get_running_loop()
    ledger = ledger or MemoryLedger(loop.time)
    budgets = AgentBudgets(
        BudgetTerms(settings, shared, rest.pop("reply_tokens", None)),
        ledger,
        rest.pop("clock", None) or CountingClock(),
    )
    definition = AgentDefinition("", settings)
    home = house(*replies, definition=definition, budgets=budgets, **rest)
    home.ledger = ledger
    home.budgets = budgets
    return home


async def used(home, scope="perDay", session_id="talk"):
    return (await home.budgets.used(session_id))[scope][1]
