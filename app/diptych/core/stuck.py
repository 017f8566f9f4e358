"""Stops runs that repeat themselves (loop.md §8).

A tool that is neither read-only nor idempotent is not called with the same arguments in a third
step in a row, unless the policy's `repeat` says otherwise. Five steps in a row with nothing but the
same error end the run, if it has steps left.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard

from diptych.core.events import Failed
from diptych.core.excerpts import is_reader
from diptych.core.messages import Call, Delegation, Result, ToolCall
from diptych.core.state import Repetition, Run, updated

STUCK = "stuck"
MAX_ERROR_STEPS = 5  # steps in a row with the same error, after which the run fails
_NAME_CHARS = 64


def note_asked(run: Run, call: Call) -> Run:
    """Note that a call with side effects is due; it may still be denied."""
    return _noted(run, call, sent=0)


def note_sent(run: Run, call: Call) -> Run:
    """Note that a call with side effects is sent."""
    return _noted(run, call, sent=1)


def repeats(run: Run, call: Call) -> int:
    """Return for how many steps in a row, up to the last one, this side effect was requested."""
    if not (run.repetition.side_effects and _has_side_effect(call, run)):
        return 0
    return run.repetition.side_effects.get(_digest(run, call), 0)


def note_step(run: Run, results: Mapping[str, Result]) -> tuple[Run, Failed | None]:
    """Note the results of a step; return the failure of a run that is stuck."""
    seen = {_error(run, results[call.id]) for call in run.calls} - {None}
    error = seen.pop() if len(seen) == 1 else None
    times = run.repetition.error_steps + 1 if error == run.repetition.last_error else 1
    made = {
        key: run.repetition.side_effects.get(key, 0) + n
        for key, n in run.repetition.step_side_effects.items()
    }
    repetition = Repetition(
        last_error=error or "",
        error_steps=times if error else 0,
        side_effects={key: count for key, count in made.items() if count},
    )
    run = updated(run, repetition=repetition)
    if (
        run.repetition.error_steps < MAX_ERROR_STEPS
        or run.queues.steering
        or run.step >= run.step_limit
    ):
        return run, None
    call = run.calls[0]
    name = call.agent if isinstance(call, Delegation) else call.name
    why = f"{MAX_ERROR_STEPS} steps in a row failed with the same error"
    return run, Failed(STUCK, f"the run is stuck at {name[:_NAME_CHARS]}: {why}")


def forget_repeats(run: Run) -> Run:
    """Reset the counts, because of a new message."""
    return updated(run, repetition=Repetition())


def _error(run: Run, result: Result) -> str | None:
    """Return a call's error, "" for a success, None if the result says nothing about the call.

    A call blocked as `repeated` counts as its former error.
    """
    match result.error:
        case None:
            return ""
        case "skipped" | "interrupted":
            return None
        case "repeated":
            return run.repetition.last_error
        case kind:
            return f"{kind}: {result.text}"


def _noted(run: Run, call: Call, *, sent: int) -> Run:
    if not _has_side_effect(call, run):
        return run
    key = _digest(run, call)
    count = max(sent, run.repetition.step_side_effects.get(key, 0))
    counts = {**run.repetition.step_side_effects, key: count}
    return updated(run, repetition=replace(run.repetition, step_side_effects=counts))


def _has_side_effect(call: Call, run: Run) -> TypeGuard[ToolCall]:
    if not isinstance(call, ToolCall) or is_reader(call):
        return False
    tool = run.catalog.tool(call.name)
    return tool is not None and not (tool.read_only or tool.idempotent)


def _digest(run: Run, call: ToolCall) -> str:
    """Return a hash of a call's tool and arguments, equal for all names of the tool."""
    tool = run.catalog.tool(call.name)
    name = tool.long_name if tool else call.name
    asked = json.dumps([name, call.arguments], sort_keys=True, default=dict)
    return hashlib.blake2b(asked.encode(errors="replace"), digest_size=12).hexdigest()
