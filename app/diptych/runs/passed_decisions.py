"""Decisions on calls of runs below: passed on to the agent of the delegation, which decides.

Each agent on the way checks its caller, so a decision goes as far as the rights go. It counts when
the agent that has the call has it on record; that it was decided comes back up as it happens.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from diptych.core.approval_records import approvals_of
from diptych.core.codec import Record
from diptych.core.errors import NotAnswered
from diptych.ports import Agents, ChildDecision
from diptych.runs.approvals import DecisionRequest
from diptych.runs.stores import Stores

RECORD_SECONDS = 15.0  # for which we wait until what was decided below is on record here, too
POLL_SECONDS = 0.2


class PassedDecisions:
    """Passes decisions down, from whichever process is asked."""

    def __init__(self, stores: Stores, agents: Agents, is_closed: Callable[[], bool]) -> None:
        self._stores = stores
        self._agents = agents
        self._is_closed = is_closed

    async def decide(self, asked: Record, request: DecisionRequest) -> Sequence[Record]:
        """Pass a decision on; gives the run's records once it is among them, or after 15 s.

        It counts by then: the agent that has the call has it on record. `asked` is
        the record of the call that waits. Raises the `RequestError` of the agent that refuses, and
        `NotAnswered` if this process leaves.
        """
        await self._agents.decide(passed_decision(asked, request))
        call_id = str(asked.metadata["call_id"])
        with suppress(TimeoutError):
            async with asyncio.timeout(RECORD_SECONDS):
                while not self._is_closed():
                    records = await self._stores.log.read(asked.run_id)
                    approvals = approvals_of(records)
                    if any(a.call_id == call_id and not a.is_open for a in approvals):
                        return records
                    await asyncio.sleep(POLL_SECONDS)
        if self._is_closed():
            raise NotAnswered("it is decided below, and not on record here yet; read the run again")
        return await self._stores.log.read(asked.run_id)


def is_below(asked: Record) -> bool:
    """Whether the call that waits is one of a run below."""
    return "path" in asked.metadata


def passed_decision(asked: Record, request: DecisionRequest) -> ChildDecision:
    """Make what is sent to the agent of the delegation that leads to the call."""
    about = asked.metadata
    child = about["child"]
    assert isinstance(child, dict)  # noqa: S101 - for the type
    _, _, call_id = str(about["call_id"]).partition(".")
    return ChildDecision(
        agent=str(about["agent"]),
        url=str(child["url"]),
        task_id=str(child["task_id"]),
        call_id=call_id,
        decision=request.decision,
        reason=request.reason,
        arguments=request.arguments,
        call=request.call,
        subject=request.subject,
    )
