"""The notices of calls: that one is about to be made, and what is told of a delegation."""

from diptych.core.commands import MakeCall
from diptych.core.messages import JSON, Call, Delegation
from diptych.core.text import well_formed
from diptych.ports import ChildEvent, Notice

PROGRESS = "progress"
"""The type of the notice that precedes a call (loop.md §5)."""


def progress_notice(command: MakeCall, max_steps: int) -> Notice:
    """Give the notice that precedes a call; `max_steps` is how many steps the run may take."""
    fields: dict[str, JSON] = {
        "step": command.step,
        "max_steps": max_steps,
        "action": "delegate" if isinstance(command.call, Delegation) else "tool_call",
        "target": target(command.call),
    }
    return Notice(PROGRESS, fields)


def delegation_notice(call: Call, seen: str | ChildEvent) -> Notice:
    """Give the notice of a sub-agent's text, or of what happened in a run at or below it.

    `path` holds the calls that lead there; `content` is only the text of the sub-agent itself.
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
    """Give the name that the model called."""
    return call.agent if isinstance(call, Delegation) else call.name
