"""The agent below, in the simulation of everything: processes of its own, that die as those above.

`Workers` is how a process above reaches it. It does what the A2A adapter does: a task is sent once,
followed over as many connections as it takes, taken up by its context, cancelled with its caller.
"""

import asyncio
import random
from dataclasses import replace

from support.replicas import Killed
from support.world import World

from diptych.budgets.recorded_use import recorded_use
from diptych.core.catalog import Peer
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import DelegationError, NotAnswered, Overloaded, RunEnded, StoreError
from diptych.core.events import Origin
from diptych.core.messages import CallOutput, ChildRun, Message
from diptych.ports import ChildEvent, Notice
from diptych.runs.answers import whole_answer
from diptych.runs.approvals import DecisionRequest
from diptych.runs.inputs import InputReply
from diptych.runs.request import RunRequest

NAME, URL = "worker", "http://worker"
LEASE = 60.0  # seconds for which a task goes on without a caller
RECONNECT = 30.0  # seconds in which the agent must be found again
UNKNOWN = "it is not known what became of the task"
NOT_TOLD = frozenset({"offered", "text"})


class Below(World):
    """The processes of the agent below, and their store."""

    letter = "q"

    def note_accepted(self):
        """Note the runs that were given: their callers may be dead by now."""
        for run_id, run in self.store.runs.items():
            about = {"text": run.records[0].content, "seconds": self.seconds_at_most}
            self.store.note("client", "accepted", run=run_id, session=run.session_id, **about)
            self.store.history[-1]["t"] = run.created - 1_000_000.0

    @property
    def seconds_at_most(self):
        return self.seconds + 12 * (self.expires or 0.0)

    def end(self):
        self.note_accepted()
        return [f"below: {what}" for what in super().end()]


class Workers:
    """Fulfils `ports.Agents` for one process above."""

    def __init__(self, below, replica):
        self.below, self.replica = below, replica
        self.chance = random.Random(f"{below.seed}, {replica.name}")

    def snapshot(self):
        return (Peer(NAME, "works"),), ()

    async def delegate(self, request, progress):
        await self.replica.passed()
        if request.is_taken_over:
            run_id = await self._find(request.context_id)
        else:
            run_id = await self._send(request)
        progress(ChildRun(URL, run_id, "working"))
        try:
            records = await self._follow(run_id, progress)
        except asyncio.CancelledError:
            if not (self.replica.is_dead or request.leaves_task()):
                await self._cancel(run_id, progress)
            raise
        return _output(run_id, records)

    async def reply(self, reply):
        at, where = self.below.one(), (reply.task_id, reply.call_id)
        given = {"approval": DecisionRequest, "input": InputReply}[reply.kind]
        working = at.runs.answer(*where, given(**reply.body))
        try:
            async with asyncio.timeout(20):
                await at.run(working)
        except (Killed, TimeoutError):
            raise NotAnswered("nobody knows what became of it") from None
        if reply.kind == "input":
            if content := reply.body.get("content"):
                self.below.answered.append((reply.task_id, content))
        else:
            self.below.decided.append((*where, reply.body["decision"]))

    async def run_tree(self, agent, child):
        raise NotImplementedError

    async def _send(self, request):
        origin = Origin(
            seconds=request.seconds_left, deadline_pauses=request.deadline_pauses, lease=LEASE
        )
        task = RunRequest(
            (Message("user", request.task),),
            session_id=request.context_id,
            origin=origin,
            budget=request.budget,
        )
        at = self.below.one()
        try:
            async with asyncio.timeout(20):
                return (await at.run(at.runs.start(task))).run_id
        except (StoreError, Overloaded):
            raise DelegationError("unavailable", "the worker has too much to do") from None
        except (Killed, TimeoutError):
            raise DelegationError("unknown", UNKNOWN) from None
        finally:
            await self.replica.passed()

    async def _find(self, context_id):
        given_up = self.below.loop.time() + RECONNECT
        while self.below.loop.time() < given_up:
            at = self.below.one()
            try:
                async with asyncio.timeout(4):
                    found = await at.run(at.runs.entries(context_id))
            except (Killed, StoreError, TimeoutError):
                await asyncio.sleep(0.3)
                continue
            await self.replica.passed()
            if found:
                return found[0].run_id
            break
        raise DelegationError("unknown", UNKNOWN)

    async def _follow(self, run_id, progress):
        records = []
        while not (records and records[-1].event_type in TERMINAL):
            at = self.below.one()
            try:
                async with asyncio.timeout(self.chance.choice([1, 10, 20])):
                    await at.run(self._read(at, run_id, records, progress))
            except (Killed, StoreError, TimeoutError):
                pass
            await asyncio.sleep(0.1)
            await self.replica.passed()
        return records

    async def _read(self, at, run_id, records, progress):
        at.runs.attend(run_id)
        async for batch in at.runs.subscribe(run_id, len(records)):
            await self.replica.passed()
            for item in batch:
                if isinstance(item, Notice):
                    if item.type == "reset":
                        del records[item.fields["last_seq"] :]
                    continue
                records.append(item)
                if item.event_type not in NOT_TOLD:
                    progress(_told(item))

    async def _cancel(self, run_id, progress):
        at = self.below.one()
        try:
            async with asyncio.timeout(5):
                await at.run(at.runs.cancel(run_id))
                for record in await at.run(at.runs.records(run_id)):
                    if record.event_type in {"approval_decided", "input_received"}:
                        progress(_told(record))
        except (Killed, StoreError, TimeoutError, RunEnded):
            pass  # nobody attends it any more


def _told(record: Record) -> ChildEvent:
    return ChildEvent(
        record.event_type, (), record.seq, record.timestamp, record.content, record.metadata
    )


def _output(run_id, records):
    end, text = records[-1], whole_answer(records) or ""
    child = ChildRun(URL, run_id, end.event_type, used=recorded_use(records))
    if end.event_type == "completed":
        return CallOutput(text, child=child)
    error = DelegationError("failed", f"the worker {end.event_type}")
    error.child = replace(child, text=text)
    raise error
