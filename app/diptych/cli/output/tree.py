"""What happens below a run, as lines for people: one for each event, set in by its depth."""

from collections.abc import Iterable, Mapping
from typing import Any

from diptych.cli.output.screen import Line, Part
from diptych.cli.output.wording import one_line, tool_call_text

MIN_TEXT_WIDTH = 30
_CALLS = ("tool_call", "delegation_request")
_RESULTS = ("tool_result", "delegation_response")
_ERRORS = ("tool_error", "delegation_error")
_ENDS = ("failed", "aborted", "max_steps")


class TreeLines:
    """Makes lines of what notices tell of sub-agents; each event once.

    After a death of an agent in between, events that were told are told again.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], int] = {}  # by path, the newest seq
        self._agents: dict[tuple[str, ...], str] = {}

    def lines(self, fields: Mapping[str, Any], width: int) -> Iterable[Line]:
        """Give the lines of a `delegation_progress` that has an `event`."""
        path, event = tuple(map(str, fields["path"])), fields["event"]
        self._agents.setdefault(path[:1], str(fields["target"]))
        kind, seq, about = event["type"], event.get("seq", 0), event.get("metadata") or {}
        if seq and seq <= self._seen.get(path, 0):
            return
        if seq:
            self._seen[path] = seq
        if kind == "delegation_request":
            self._agents[(*path, str(about.get("call_id")))] = _agent_of(event.get("content"))
        margin: Part = ("  " + "│ " * len(path), "dim")
        room = max(width - 2 * len(path) - 6, MIN_TEXT_WIDTH)
        if skipped := event.get("skipped"):
            yield margin, (f"… {skipped} events were not told", "yellow")
        if kind == "agent_response" and len(path) == 1:
            return  # the caller quotes the answer of its own delegations as it comes
        if parts := _parts(kind, event, room):
            yield margin, (f"{self._agents.get(path, '?')}  ", "dim"), *parts


def _parts(kind: str, event: Mapping[str, Any], room: int) -> Line:  # noqa: C901 - a table
    about, content = event.get("metadata") or {}, event.get("content")
    text = one_line(content if isinstance(content, str) else "", room)
    name = str(about.get("tool") or about.get("agent") or "")
    if kind in _CALLS:
        return (f"● step {about.get('step')}  ", "cyan"), one_line(_call_text(content), room)
    if kind in _RESULTS:
        return ("✓ ", "green"), (f"{name}  ", "dim"), text
    if kind in _ERRORS:
        return ("✗ ", "red"), (f"{name}  ", "dim"), (text, "red")
    match kind:
        case "approval_requested":
            asked = one_line(_call_text(content), room)
            return ("? waits for a decision  ", "magenta"), asked
        case "approval_decided":
            return ("? ", "magenta"), (f"decided: {text}", "")
        case "action_error":
            return ("! ", "yellow"), (f"{about.get('error_type')}: {text}", "")
        case "agent_response":
            return ("❮ ", "green"), text
        case "owner_changed":
            return (("! ", "yellow"), "another process has taken the run over")
        case "model_wait":
            return ("! ", "yellow"), text
        case "tool_progress":
            return ((f"… {name}: {text}", "dim"),)
        case _ if kind in _ENDS:
            return ("✗ ", "red"), (f"{kind}: {text}", "red")
        case _:
            return ()


def _agent_of(content: object) -> str:
    return str(content.get("agent")) if isinstance(content, dict) else "?"


def _call_text(content: object) -> str:
    match content:
        case {"tool": tool, "arguments": {**arguments}}:
            return tool_call_text(tool, arguments)
        case {"agent": agent, "task": task}:
            return f"→ {agent}: {task}"
        case _:
            return str(content)
