"""Runs that are stuck: they make the same call again and again (loop.md §8).

The third time that a call fails, or gives the same result, ends the run. And a tool that is not
read-only is not called a third time with the same arguments in consecutive steps, whatever comes
back: that is asked of the policy, whose `repeat` may say otherwise. `repeat` does not touch the
first rule: calls that give the same three times end the run.
"""

import hashlib
import json
from collections.abc import Mapping

from diptych.loop.events import Failed
from diptych.loop.excerpts import is_reader
from diptych.loop.messages import JSON, Call, Delegation, Result, ToolCall
from diptych.loop.state import Run, updated

STUCK = "stuck"
MOST_TIMES = 3  # for which a call may give the same; it is over at the last of them
_NAME_CHARS = 64
_OF_FLOATS = (".0", "e+")  # in JSON that Python writes: without them no float is a whole number
_UNCOUNTED = frozenset({"skipped", "interrupted", "unknown"})  # say nothing of the call itself


def note_side_effect(run: Run, call: Call) -> Run:
    """Note a call that is sent, if it may change something."""
    if not _has_side_effect(run, call):
        return run
    return updated(run, step_side_effects=run.step_side_effects | {_digest(run, call)})


def repeats(run: Run, call: Call) -> int:
    """In how many of the newest steps, one after another, this very side effect was asked for."""
    if not (run.side_effects and _has_side_effect(run, call)):
        return 0
    return run.side_effects.get(_digest(run, call), 0)


def note_step(run: Run, results: Mapping[str, Result]) -> tuple[Run, Failed | None]:
    """Note the calls of a step and their results; gives the end of a run that is stuck."""
    seen = dict[str, Call]()
    for call in run.calls:
        result = results[call.id]
        if result.error not in _UNCOUNTED:
            seen[_digest(run, call, "failed" if result.error else result.text)] = call
    counts = {key: run.repeated.get(key, 0) + 1 for key in seen}
    run = updated(
        run,
        repeated={**run.repeated, **counts},
        side_effects=_side_effects(run, results),
        step_side_effects=frozenset(),
    )
    stuck = next((key for key, count in counts.items() if count >= MOST_TIMES), None)
    if stuck is None or run.steering:
        return run, None
    call = seen[stuck]
    outcome = "failed" if results[call.id].error else "gave the same result"
    return run, stuck_at(call, f"the same call {outcome} {MOST_TIMES} times")


def forget_repeats(run: Run) -> Run:
    """Begin to count anew: somebody has said something."""
    return updated(run, repeated={}, side_effects={}, step_side_effects=frozenset())


def stuck_at(call: Call, why: str) -> Failed:
    """Give the end of a run that is stuck at a call."""
    name = call.agent if isinstance(call, Delegation) else call.name
    return Failed(STUCK, f"the run is stuck at {name[:_NAME_CHARS]}: {why}")


def _side_effects(run: Run, results: Mapping[str, Result]) -> dict[str, int]:
    """Count this step's side effects; a call asked for again and denied does not end the count."""
    made = {key: run.side_effects.get(key, 0) + 1 for key in run.step_side_effects}
    denied = {_digest(run, call) for call in run.calls if results[call.id].error == "denied"}
    kept = {key: run.side_effects[key] for key in denied & run.side_effects.keys()}
    return kept | made


def _has_side_effect(run: Run, call: Call) -> bool:
    if not isinstance(call, ToolCall) or is_reader(call):
        return False
    tool = run.catalog.tool(call.name)
    return tool is not None and not tool.read_only


def _digest(run: Run, call: Call, outcome: str = "") -> str:
    """Name a call by what it asks for, and by what came of it.

    However that is written: by the tool's short name or its long one, `1` or `1.0`.
    """
    if isinstance(call, Delegation):
        asked = json.dumps([call.agent, call.task])
    else:
        tool = run.catalog.tool(call.name)
        name = tool.long_name if tool else call.name
        asked = json.dumps([name, call.arguments], sort_keys=True, default=dict)
        if any(mark in asked for mark in _OF_FLOATS):
            plain = _without_fractions_of_zero(call.arguments)
            asked = json.dumps([name, plain], sort_keys=True, default=dict)
    content = f"{asked}\n{outcome}".encode(errors="replace")
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def _without_fractions_of_zero(value: JSON) -> JSON:
    """Give a value with `1` in place of `1.0`; to JSON schemas they are one number."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {key: _without_fractions_of_zero(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_without_fractions_of_zero(inner) for inner in value]
        case _:
            return value
