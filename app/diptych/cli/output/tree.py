"""The runs below a run: their events as they arrive, and a tree with costs."""

import time
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from diptych.cli.output.screen import Line, Part, print_report, stdout_width
from diptych.cli.output.wording import duration, event_text, one_line
from diptych.core.budget import decimal_text

_MIN_TEXT_WIDTH = 30
_EVENT_MARKS: Mapping[str, tuple[str, str]] = {
    "tool_call": ("● step {step}  ", "cyan"),
    "delegation_request": ("● step {step}  → ", "cyan"),
    "tool_result": ("✓ ", "green"),
    "delegation_response": ("✓ ", "green"),
    "tool_error": ("✗ ", "red"),
    "delegation_error": ("✗ ", "red"),
    "approval_requested": ("? waits for a decision  ", "magenta"),
    "approval_decided": ("? decided: ", "magenta"),
    "input_requested": ("? waits for an answer  ", "magenta"),
    "input_received": ("? answered: ", "magenta"),
    "action_error": ("! ", "yellow"),
    "agent_response": ("❮ ", "green"),
    "owner_changed": ("! another process has taken the run over", "yellow"),
    "model_wait": ("! ", "yellow"),
    "tool_progress": ("… ", "dim"),
    "failed": ("✗ failed: ", "red"),
    "aborted": ("✗ aborted: ", "red"),
    "max_steps": ("✗ max_steps: ", "red"),
}
"""The prefix of each event's line. Other events are not shown."""
_RUN_STYLES = {"completed": "green", "running": "cyan", "input-required": "magenta"}


class TreeLines:
    """Makes lines of the notices about sub-agents, set in by depth; each event once.

    When another process takes over an agent in between, events are sent again.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], int] = {}  # by path, the newest seq
        self._agents: dict[tuple[str, ...], str] = {}

    def lines(self, fields: Mapping[str, Any], width: int) -> Iterable[Line]:
        """Yield the lines of a `delegation_progress` that has an `event`."""
        path, event = tuple(map(str, fields["path"])), fields["event"]
        self._agents.setdefault(path[:1], str(fields["target"]))
        kind, seq, about = event["type"], event.get("seq", 0), event.get("metadata") or {}
        content = event.get("content")
        if seq and seq <= self._seen.get(path, 0):
            return
        if seq:
            self._seen[path] = seq
        if kind == "delegation_request" and isinstance(content, dict):
            self._agents[*path, str(about.get("call_id"))] = str(content.get("agent"))
        margin: Part = ("  " + "│ " * len(path), "dim")
        is_quoted = kind == "agent_response" and len(path) == 1  # the caller quotes it as it comes
        if kind not in _EVENT_MARKS or is_quoted:
            return
        mark, style = _EVENT_MARKS[kind]
        room = max(width - 2 * len(path) - 6, _MIN_TEXT_WIDTH)
        text = one_line(event_text(kind, content, about), room)
        name = "" if kind.endswith(("call", "request")) else about.get("tool") or about.get("agent")
        yield (
            margin,
            (f"{self._agents.get(path, '?')}  ", "dim"),
            (mark.format(step=about.get("step")), style),
            (f"{name}  " if name else "", "dim"),
            text,
        )


def print_tree(tree: Mapping[str, Any]) -> None:
    """Write a run and the runs below it to stdout, a line each."""
    print_report(tree_view(tree, stdout_width(), time.time()))


def tree_view(tree: Mapping[str, Any], width: int, now: float) -> Iterator[Line]:
    """Yield the lines of a tree; `now` is in seconds since the epoch."""
    yield _run_line(tree, str(tree.get("agent", "")), "", now)
    yield from _below(tree, "", width, now)


def _below(run: Mapping[str, Any], margin: str, width: int, now: float) -> Iterator[Line]:
    calls = run.get("delegations") or []
    for number, call in enumerate(calls, 1):
        branch, inner = ("└─ ", "   ") if number == len(calls) else ("├─ ", "│  ")
        name = str(call.get("agent", ""))
        room = max(width - len(margin) - len(name) - 20, _MIN_TEXT_WIDTH)
        task = one_line(str(call.get("task", "")), room)
        if below := call.get("run"):
            yield _run_line(below, name, margin + branch, now, task)
            yield from _below(below, margin + inner, width, now)
        else:
            yield _call_line(call, name, margin + branch, now, task)


def _run_line(run: Mapping[str, Any], name: str, margin: str, now: float, task: str = "") -> Line:
    code = f" ({run['code']})" if run.get("code") else ""
    amounts = f"{_took(run, now)}  {_tokens(run)}{_money(run)}"
    end = (f"  {run.get('run_id')}", "dim"), (f"  {task}" if task else "")
    return *_head(name, str(run.get("status")), margin), f"{code}  {amounts}", *end


def _call_line(call: Mapping[str, Any], name: str, margin: str, now: float, task: str) -> Line:
    """Show a delegation whose run could not be read by what the caller's record says."""
    child = call.get("child") or {}
    used = child.get("usage")
    tokens = f"  {used['prompt_tokens']} in, {used['completion_tokens']} out" if used else ""
    return (
        *_head(name, str(call.get("status")), margin),
        f"  {_took(call, now)}{tokens}",
        (f"  {child['task_id']}" if child.get("task_id") else "", "dim"),
        f"  {task}",
        (f"  ! {call['problem']}" if call.get("problem") else "", "yellow"),
    )


def _head(name: str, status: str, margin: str) -> Line:
    return (margin, "dim"), (f"{name}  ", "bold"), (status, _RUN_STYLES.get(status, "red"))


def _took(node: Mapping[str, Any], now: float) -> str:
    started = node.get("started_at")
    return "?" if started is None else duration((node.get("ended_at") or now) - started)


def _tokens(run: Mapping[str, Any]) -> str:
    """Format a run's own usage, and its usage including children."""
    own, below = run["usage"], run["children_usage"]
    names = ("prompt_tokens", "completion_tokens")
    text = " in, ".join(str(own[name]) for name in names) + " out"
    if not any(below[name] for name in names):
        return text
    whole = " in, ".join(str(own[name] + below[name]) for name in names) + " out"
    return f"{text} (with children {whole})"


def _money(run: Mapping[str, Any]) -> str:
    """Format a run's own cost, and its cost including children; empty without prices."""
    own, below = (Decimal(run.get(name) or 0) for name in ("cost", "children_cost"))
    if not own + below:
        return ""
    whole = f" (with children {decimal_text(own + below)})" if below else ""
    return f"  cost {decimal_text(own)}{whole}"
