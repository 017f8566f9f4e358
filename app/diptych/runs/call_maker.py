"""Makes the calls of one run: from the command `MakeCall` to the event `Returned`.

`check` asks policy and budget, `make` charges the calls, and `begin` announces, logs and sends
them. With shared budgets, charging may take a while: the run goes on, and the inbox gets
`CallsAllowed` (decision 228).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import orjson

from diptych.budgets.run_meter import budget_notices
from diptych.core import prompt
from diptych.core.budget import Budget
from diptych.core.call_graph import failure
from diptych.core.catalog import Tool
from diptych.core.commands import MakeCall
from diptych.core.errors import CallError, LoopError
from diptych.core.events import ApprovalRequested, Called, CallKind, Failed, Returned
from diptych.core.messages import (
    JSON,
    NO_USE,
    Call,
    CallOutput,
    ChildRun,
    Delegation,
    Result,
    ToolCall,
)
from diptych.core.reducer import apply_all
from diptych.core.rendering import without_native_calls
from diptych.core.spending import denied_call, gets_share
from diptych.core.state import Run, conversation
from diptych.core.stuck import repeats
from diptych.core.text import RESULT_BYTES, bounded, well_formed
from diptych.policy.rules import RunCaller
from diptych.ports import CallContext, ChildEvent, DelegationRequest, Notice
from diptych.runs.backends import Backends
from diptych.runs.hooks import HookCaller
from diptych.runs.inbox import CallsAllowed, RunTasks
from diptych.runs.inputs import Questions, result_from_caller
from diptych.runs.run_log import PROGRESS, RunWriter
from diptych.runs.timers import Deadline
from diptych.runs.waits import child_waits

Blocked: TypeAlias = Returned | ApprovalRequested
"""The event instead of a call that is denied or needs approval."""

_logger = logging.getLogger(__name__)


class CallMaker:
    """Makes the calls of one run, each in one of its `tasks`."""

    def __init__(
        self,
        backends: Backends,
        hooks: HookCaller,
        writer: RunWriter,
        deadline: Deadline,
        tasks: RunTasks,
    ) -> None:
        self.children: dict[str, ChildRun] = {}
        """Known tasks of delegations without a result, by call id."""
        self._backends = backends
        self._hooks = hooks
        self._writer = writer
        self._log = writer.log
        self._deadline = deadline
        self._tasks = tasks
        self._questions = Questions(tasks, writer.log.now)
        self._charging: list[MakeCall] = []
        self._to_charge: list[MakeCall] = []

    @property
    def not_begun(self) -> Sequence[MakeCall]:
        """The calls that are being charged, or will be next."""
        return [*self._charging, *self._to_charge]

    def check(self, command: MakeCall, before: Sequence[MakeCall]) -> Blocked | None:
        """Check a call against the policy (audited), then the run's budget.

        Returns None if it may be made. `before` are allowed calls that have not begun.
        """
        if command.is_retry:  # checked by a former owner
            return None
        run, call = self._writer.current, command.call
        principal, on_behalf = run.caller or run.subject, run.subject if run.caller else ""
        verdict = self._backends.policy.verdict(
            call,
            run.catalog,
            RunCaller(self._log.run_id, principal, on_behalf),
            is_approved=command.is_approved,
            repeats=repeats(run, call),
        )
        match verdict.outcome:
            case "ask":
                expires_at = self._log.now() + verdict.expires
                return ApprovalRequested(call, command.step, verdict.reason, expires_at)
            case "deny":
                return failure(call, "denied", f"denied: {verdict.reason}")
            case "repeated":
                return failure(call, "repeated", f"repeated: {verdict.reason}")
            case "allow":
                return denied_call(run, command, before)

    async def make(self, commands: Sequence[MakeCall]) -> None:
        """Charge calls and begin the allowed ones, at once or when charging is done.

        Calls are charged one batch at a time, because their shares are computed together. A call
        that waits here for its answer continues with it instead.
        """
        commands = [each for each in commands if not self._questions.answer(each)]
        if self._charging:
            self._to_charge += commands
            return
        self._charging = list(commands)
        if allowed := await self._tasks.start_eagerly(self._charge(commands)):
            await self.begin(allowed.commands)

    async def _charge(self, commands: Sequence[MakeCall]) -> CallsAllowed:
        meter, refuse = self._backends.meter, self._tasks.inbox.put_nowait
        return CallsAllowed(await meter.charge_calls(commands, self._writer.current, refuse))

    async def begin(self, allowed: Sequence[MakeCall]) -> None:
        """Announce, log and start allowed calls; then charge the next ones."""
        self._charging = []
        await self._begin(self._still_due(allowed))
        to_charge, self._to_charge = self._still_due(self._to_charge), []
        if to_charge:
            await self.make(to_charge)

    def _still_due(self, commands: Sequence[MakeCall]) -> Sequence[MakeCall]:
        """Return the calls to begin; skip those that a message superseded meanwhile."""
        if not self._writer.current.queues.steering:
            return commands
        for command in commands:
            if not command.is_retry:
                skipped = failure(command.call, "skipped", prompt.SUPERSEDED)
                self._backends.meter.end_child(skipped.result, NO_USE)
                self._tasks.inbox.put_nowait(skipped)
        return [command for command in commands if command.is_retry]

    async def _begin(self, commands: Sequence[MakeCall]) -> None:
        writer, meter = self._writer, self._backends.meter
        before = writer.current
        for command in commands:
            call = command.call
            writer.add(progress_notice(command, writer.current.step_limit))
            if not command.is_retry:
                is_delegation = isinstance(call, Delegation)
                context_id = self._log.new_context_id() if is_delegation else None
                share = meter.shares.get(call.id, Budget())
                called = Called(call, command.step, context_id, share)
                writer.current = apply_all(writer.current, [called])
                writer.add(called)
        await writer.write(*budget_notices(before, writer.current))
        trace = self._backends.trace
        for command in commands:
            self._questions.begin(command.call.id)
            make = partial(self._call, command, writer.current)
            self._tasks.start(trace.calling(command.call.id, make) if trace else make())

    async def look_for_children(self, commands: Sequence[MakeCall]) -> None:
        """Resume a former owner's delegations in a run that is ending.

        Its end then cancels them at the other agents too, and logs their reports.
        """
        run = self._writer.current
        for command in commands:
            if command.is_retry and isinstance(command.call, Delegation):
                self._backends.meter.take_up(command.call)
                self._tasks.start(self._call(command, run))
        await asyncio.sleep(0)  # a task cancelled before its first step never begins

    async def _call(self, command: MakeCall, run: Run) -> Returned | Failed:
        """Make a call; return its result after the hooks. Errors are results."""
        call = command.call
        try:
            output = await self._send(command, run)
        except CallError as error:
            child = getattr(error, "child", None)
            result = Result(call.id, _result_text(error.message), error=error.kind, child=child)
        except asyncio.CancelledError:
            if self._tasks.is_cancelled:
                raise
            text = prompt.outcome_unknown("the call cancelled itself")
            result = Result(call.id, text, error="unknown")
        except LoopError:
            raise
        except Exception:
            _logger.exception("call failed with an unexpected error")
            text = prompt.outcome_unknown("the call failed with an internal error of the agent")
            result = Result(call.id, text, error="unknown")
        else:
            result = _result(call, output)
        kind: CallKind = "agent" if isinstance(call, Delegation) else "tool"
        if result.child:
            child = _counted(call, result.child, run)  # kept in case the run ends meanwhile
            self.children[call.id], result = child, replace(result, child=child)
        judged = await self._hooks.after_call(call, result, run)
        if isinstance(judged, Failed):
            return judged
        self.children.pop(call.id, None)
        result, replaced_by = judged
        return Returned(result, kind, target(call), replaced_by)

    async def _send(self, command: MakeCall, run: Run) -> CallOutput:
        call = command.call
        about: dict[str, JSON] = {"call_id": call.id, "target": target(call)}

        def watch(seen: str | ChildRun | ChildEvent) -> None:
            if isinstance(seen, ChildRun):
                self.children[call.id] = _counted(call, seen, run)
                return
            child = self.children.get(call.id)
            if child and isinstance(seen, ChildEvent) and isinstance(call, Delegation):
                for event in child_waits(call, child, seen):
                    self._tasks.inbox.put_nowait(event)
            self._log.notify(delegation_notice(call, seen))

        if isinstance(call, Delegation):
            delegation = self._delegation(call, run, is_taken_over=command.is_retry)
            return await self._backends.agents.delegate(delegation, watch)
        context = CallContext(
            lambda text: self._log.notify(
                Notice("tool_progress", {**about, "message": well_formed(text)})
            ),
            self._log.run_id,
            call.id,
            person="" if run.caller else run.subject,
            resumed=command.resumed if _has_state(command) else None,
            ask=partial(self._questions.ask, call.id),
        )
        tool = _tool_of(call, run)
        if tool.is_callers:
            return await result_from_caller(tool, context)
        return await self._backends.tools.call(tool, call.arguments, context)

    def _delegation(self, call: Delegation, run: Run, *, is_taken_over: bool) -> DelegationRequest:
        limit = run.settings.memory_context_limit
        context = conversation(run)[:-1][-limit:] if limit else ()  # without the reply
        trace = self._backends.trace
        return DelegationRequest(
            agent=call.agent,
            task=call.task,
            context_id=run.context_ids.get(call.id, ""),
            context=tuple(without_native_calls(context, run.nonce)),
            path=run.origin.path,
            seconds_left=self._deadline.seconds_left,
            traceparent=trace.traceparent(call.id) if trace else run.origin.traceparent,
            subject=run.subject,
            run_id=self._log.run_id,
            call_id=call.id,
            budget=run.shares.get(call.id, Budget()),
            deadline_pauses=self._deadline.pauses,
            is_taken_over=is_taken_over,
            leaves_task=lambda: self._tasks.leaves_remote,
        )


def _counted(call: Call, child: ChildRun, run: Run) -> ChildRun:
    """Drop the reported usage of a child without a share: it does not count."""
    return child if gets_share(call, run) else replace(child, usage=None, used=None)


def _has_state(command: MakeCall) -> bool:
    return command.resumed is not None and command.resumed.state is not None


def _tool_of(call: ToolCall, run: Run) -> Tool:
    tool = run.catalog.tool(call.name)
    if tool is None:
        raise LoopError(f"{call} is not in the run's catalog")
    return tool


def _result(call: Call, output: CallOutput) -> Result:
    text, reason = _result_text(output.text), output.finish_reason
    if reason != "stop":
        text = f"{text}\n\n[{prompt.NOT_WHOLE[reason].format(target(call))}]"
    value = _recordable(output.value)
    return Result(call.id, text, value, finish_reason=reason, child=output.child)


def _recordable(value: JSON) -> JSON:
    """Return the value if a record can hold it, else None; the model still has the text."""
    try:
        return value if len(orjson.dumps(value)) <= RESULT_BYTES else None
    except TypeError:
        return None


def _result_text(text: str) -> str:
    return bounded(well_formed(text))


def progress_notice(command: MakeCall, max_steps: int) -> Notice:
    """Return the notice sent before a call."""
    fields: dict[str, JSON] = {
        "step": command.step,
        "max_steps": max_steps,
        "action": "delegate" if isinstance(command.call, Delegation) else "tool_call",
        "target": target(command.call),
    }
    return Notice(PROGRESS, fields)


def delegation_notice(call: Call, seen: str | ChildEvent) -> Notice:
    """Return the notice of a sub-agent's text, or of an event of it or its children.

    `path` holds the call ids that lead there; `content` is only the sub-agent's own text.
    """
    about: dict[str, JSON] = {"call_id": call.id, "target": target(call)}
    if isinstance(seen, str):
        return Notice(
            "delegation_progress", {**about, "path": [call.id], "content": well_formed(seen)}
        )
    event: dict[str, JSON] = {
        "type": seen.type,
        "seq": seen.seq,
        "timestamp": seen.timestamp,
        "content": seen.content,
        "metadata": seen.metadata,
    }
    path: list[JSON] = [call.id, *seen.path]
    return Notice("delegation_progress", {**about, "path": path, "content": "", "event": event})


def target(call: Call) -> str:
    """Return the name that the model called."""
    return call.agent if isinstance(call, Delegation) else call.name
