"""Who may pass a decision on: an agent that may approve, for somebody who did not begin the run."""

from typing import Any

import pytest

from diptych.access.caller import Caller, OwnRun, set_caller
from diptych.access.grants import Right, Subject
from diptych.core.codec import Record
from diptych.http.waits import GuardedWaits
from diptych.ports.entries import RunEntry
from diptych.runs.approvals import DecisionRequest

TOP = Subject("agent", "team/top")
ADA = "user:ada"


class Runs:
    """A run that the agent at the top began, for Ada."""

    def __init__(self, **metadata: Any) -> None:
        first = Record("r", "s", 1, "user_message", 1.0, "hi", metadata)
        asked = Record("r", "s", 2, "approval_requested", 1.0, {}, {"call_id": "c"})
        self.log = [first, asked]
        self.decided: list[DecisionRequest] = []

    async def entry(self, run_id: str) -> RunEntry:
        return RunEntry(run_id, "s", "input-required", 1.0, 1.0, 1)

    async def records(self, run_id: str) -> list[Record]:
        return self.log

    async def answer(self, run_id: str, call_id: str, request: DecisionRequest) -> list[Record]:
        self.decided.append(request)
        return self.log


async def decide(runs: Any, subject: Subject | None, named: str, *rights: Right) -> DecisionRequest:
    set_caller(Caller(subject, frozenset(rights)))
    await GuardedWaits(runs).answer("r", "c", DecisionRequest("approve", subject=named))
    (decided,) = runs.decided
    return decided


async def test_an_agent_that_may_approve_passes_on_what_somebody_else_decided() -> None:
    runs = Runs(subject=ADA, caller=str(TOP))
    decided = await decide(runs, TOP, "user:lead", Right.ASK, Right.APPROVE)
    assert (decided.subject, decided.caller) == ("user:lead", "agent:team/top")


@pytest.mark.parametrize(
    ("named", "began"),
    [
        pytest.param(ADA, {"subject": ADA, "caller": str(TOP)}, id="for whom it was begun"),
        pytest.param("", {"subject": ADA, "caller": str(TOP)}, id="nobody is named"),
        pytest.param(str(TOP), {"subject": ADA, "caller": str(TOP)}, id="names itself"),
        pytest.param("", {"subject": str(TOP)}, id="began it in its own name"),
    ],
)
async def test_nobody_decides_on_its_own_by_way_of_an_agent(named: str, began: Any) -> None:
    runs = Runs(**began)
    with pytest.raises(OwnRun):
        await decide(runs, TOP, named, Right.ASK, Right.APPROVE)
    assert runs.decided == []


async def test_only_agents_pass_decisions_on() -> None:
    runs = Runs(subject=ADA)
    with pytest.raises(OwnRun):
        await decide(runs, Subject("user", "ada"), "user:lead", Right.ASK, Right.APPROVE)
    key = await decide(runs, Subject("key", "ci"), "user:lead", Right.APPROVE)
    assert (key.subject, key.caller) == ("key:ci", "")
