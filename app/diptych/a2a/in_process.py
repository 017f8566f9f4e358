"""Agents of this process as sub-agents: a delegation is a run of theirs, followed without HTTP.

Callers get the same events and reports that A2A carries.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import orjson

from diptych.a2a.events import notice_event, read_event, record_event
from diptych.a2a.extension import LEASE_SECONDS, MAX_DEPTH
from diptych.a2a.local_agent import LocalAgent
from diptych.a2a.no_agents import NoAgents
from diptych.a2a.progress import MAX_PARTIAL_CHARS
from diptych.budgets.recorded_use import RecordedUse
from diptych.core import prompt
from diptych.core.catalog import Peer, Unavailable
from diptych.core.codec import Record, is_terminal
from diptych.core.errors import DelegationError, RequestError, StoreError
from diptych.core.events import Origin
from diptych.core.messages import (
    JSON,
    CallOutput,
    ChildRun,
    FinishReason,
    Message,
    ParentCall,
)
from diptych.ports import (
    ChildEvent,
    ChildRef,
    ChildReply,
    DelegationProgress,
    DelegationRequest,
    Item,
)
from diptych.runs.answers import collect, end_code, whole_answer
from diptych.runs.approvals import DecisionRequest
from diptych.runs.inputs import InputReply
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService

if TYPE_CHECKING:
    from diptych.a2a.agents import A2aAgents

CANCEL_GRACE_PERIOD = 0.8  # seconds that a delegation waits for its cancellation
ATTEND_SECONDS = LEASE_SECONDS / 6
_STATES = {"completed": "completed", "aborted": "canceled"}
_PROBLEMS = {"aborted": "canceled the task"}


class InProcessAgents:
    """Fulfils `ports.Agents` for agents of this process, and for `others` behind URLs."""

    def __init__(
        self, agents: Sequence[LocalAgent], others: "A2aAgents | NoAgents", *, own_name: str
    ) -> None:
        self._agents = {agent.name: agent for agent in agents}
        self._others = others
        self._own_name = own_name
        self._cancellations: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to read the cards of the others; returns at once."""
        await self._others.start()

    async def wait_for_first_attempt(self, timeout: float) -> None:  # noqa: ASYNC109 - not an error
        """Return when all agents of this process are open, and every other one has been tried."""
        opening = (agent.open() for agent in self._agents.values())
        await asyncio.gather(self._others.wait_for_first_attempt(timeout), *opening)

    async def aclose(self) -> None:
        """Let cancellations arrive; agents of this process stay open for their other users."""
        if self._cancellations:
            await asyncio.wait(self._cancellations, timeout=CANCEL_GRACE_PERIOD)
        await self._others.aclose()

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        others, unavailable = self._others.snapshot()
        own = (Peer(agent.name, agent.description) for agent in self._agents.values())
        return (*own, *others), unavailable

    async def delegate(
        self, request: DelegationRequest, progress: DelegationProgress
    ) -> CallOutput:
        if request.agent not in self._agents:
            return await self._others.delegate(request, progress)
        runs = await self._agents[request.agent].open()
        try:
            run_id = await self._run_of(runs, request)
            return await _follow(runs, run_id, request.agent, progress)
        except asyncio.CancelledError:
            if not request.leaves_task():
                await self._cancel(runs, request, progress)
            raise
        except (RequestError, StoreError) as error:
            raise DelegationError("failed", f"agent {request.agent}: {error}") from error

    async def reply(self, reply: ChildReply) -> None:
        if reply.agent not in self._agents:
            return await self._others.reply(reply)
        runs = await self._agents[reply.agent].open()
        fields: Any = reply.body
        given = DecisionRequest(**fields) if reply.kind == "approval" else InputReply(**fields)
        await runs.answer(reply.task_id, reply.call_id, given)
        return None

    async def run_tree(self, agent: str, child: ChildRef) -> JSON:
        if agent not in self._agents:
            return await self._others.run_tree(agent, child)
        raise DelegationError("refused", f"agent {agent} is not served, so it shows no runs")

    async def _run_of(self, runs: RunService, request: DelegationRequest) -> str:
        """Start the run of a delegation, or find the one that a former owner has started."""
        if request.is_taken_over:
            found = await runs.entries(request.context_id, limit=1)
            if not found:
                raise DelegationError("unknown", prompt.OUTCOME_UNKNOWN)
            return found[0].run_id
        path = (*request.path, f"http://{self._own_name}.in-process.invalid")
        if len(path) > MAX_DEPTH:
            raise DelegationError(
                "refused",
                f"the request came through {MAX_DEPTH} agents already, and may go no deeper",
            )
        if request.seconds_left is not None and request.seconds_left <= 0:
            raise DelegationError("timeout", "there was no time left to ask another agent")
        origin = Origin(
            path=path,
            traceparent=request.traceparent,
            seconds=request.seconds_left,
            parent=ParentCall(self._own_name, request.run_id, request.call_id),
            deadline_pauses=request.deadline_pauses,
            lease=LEASE_SECONDS,
        )
        context = (message for message in request.context if message.role != "system")
        asked = RunRequest(
            (*context, Message("user", request.task)),
            session_id=request.context_id,
            origin=origin,
            subject=request.subject,
            budget=request.budget,
        )
        return (await runs.start(asked)).run_id

    async def _cancel(
        self, runs: RunService, request: DelegationRequest, progress: DelegationProgress
    ) -> None:
        """Cancel the run and wait a moment; a second cancel ends only the wait."""

        async def cancel() -> None:
            for entry in await runs.entries(request.context_id, limit=1):
                await runs.cancel(entry.run_id, "the calling agent cancelled it")
                progress(_child(entry.run_id, await runs.records(entry.run_id)))

        task = asyncio.create_task(cancel())
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)
        await asyncio.wait([task], timeout=CANCEL_GRACE_PERIOD)


async def _follow(
    runs: RunService, run_id: str, agent: str, progress: DelegationProgress
) -> CallOutput:
    """Report a run's events until its end; return its answer. Raises `DelegationError`."""
    records: list[Record] = []
    use, reported, sent = RecordedUse(), None, 0
    async with _attended(runs, run_id), aclosing(runs.subscribe(run_id)) as batches:
        async for batch in batches:
            for item in batch:
                collect(records, item)
                if isinstance(item, Record):
                    use.add(item)
                sent = _report(item, sent, progress)
            if (used := use.used) != reported:
                reported = used
                progress(_child(run_id, records))
    child = _child(run_id, records)
    try:
        return _output(agent, records, child)
    except DelegationError as error:
        error.child = child
        raise


def _report(item: Item, sent: int, progress: DelegationProgress) -> int:
    """Report one item; `sent` characters of the answer were reported before it."""
    kind = item.event_type if isinstance(item, Record) else ""
    text = ""
    if isinstance(item, Record) and kind in {"text", "agent_response"}:
        text = str(item.content)[sent if kind == "agent_response" else 0 :]
    if text:
        progress(text)
    if event := _event(item):
        progress(event)
    if kind == "text":
        return sent + len(text)
    return 0 if kind in {"agent_response", "answer_reset"} else sent


def _event(item: Item) -> ChildEvent | None:
    told = record_event(item) if isinstance(item, Record) else notice_event(item)
    return read_event(dict(told)) if told else None


def _child(run_id: str, records: Sequence[Record]) -> ChildRun:
    use = RecordedUse(records)
    if not (records and is_terminal(records[-1])):
        return ChildRun("", run_id, "working", "", use.tree_usage, used=use.used)
    kind, code = records[-1].event_type, end_code(records[-1])
    state = _STATES.get(kind, "failed")
    partial = "" if kind == "completed" else _partial(records)
    return ChildRun("", run_id, state, code, use.tree_usage, partial, use.used)


def _partial(records: Iterable[Record]) -> str:
    return "".join(str(r.content) for r in records if r.event_type == "text")[:MAX_PARTIAL_CHARS]


def _output(agent: str, records: Sequence[Record], child: ChildRun) -> CallOutput:
    end = records[-1]
    if not is_terminal(end):  # its agent was closed, and another process goes on with it
        raise DelegationError("unknown", prompt.OUTCOME_UNKNOWN)
    if end.event_type != "completed":
        problem = _PROBLEMS.get(end.event_type, "failed")
        raise DelegationError("failed", f"agent {agent} {problem}: {end.content}")
    answer = next(r for r in reversed(records) if r.event_type == "agent_response")
    value = orjson.loads(str(answer.content)) if answer.metadata.get("is_json") else None
    reason = cast("FinishReason", answer.metadata.get("finish_reason", "stop"))
    return CallOutput(whole_answer(records) or "", value, reason, child)


@asynccontextmanager
async def _attended(runs: RunService, run_id: str) -> AsyncGenerator[None]:
    """Attend a run while the block lasts: one that nobody attends is aborted."""

    async def attend() -> None:
        while True:
            runs.attend(run_id)
            await asyncio.sleep(ATTEND_SECONDS)

    task = asyncio.create_task(attend())
    try:
        yield
    finally:
        task.cancel()
