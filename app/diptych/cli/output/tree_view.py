"""A run and the runs below it as lines: one for each run, with its time, tokens and money."""

import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from rich.text import Text

from diptych.cli.output.screen import Line, StyledStream, printable_parts
from diptych.cli.output.wording import duration, one_line
from diptych.core.budget import decimal_text

_PIPE_WIDTH, _MIN_TEXT_WIDTH = 1_000, 30
_STYLES = {"completed": "green", "running": "cyan", "input-required": "magenta"}


def print_tree(tree: Mapping[str, Any]) -> None:
    """Write the tree to stdout: at a terminal's width, or with long lines to a pipe."""
    console = StyledStream()
    width = console.width if console.is_terminal else _PIPE_WIDTH
    for line in tree_view(tree, width, time.time()):
        console.print(Text.assemble(*printable_parts(line)), soft_wrap=True)


def tree_view(tree: Mapping[str, Any], width: int, now: float) -> Iterator[Line]:
    """Give the lines of a tree; `now` is in seconds since the epoch."""
    yield _run_line(tree, str(tree.get("agent", "")), "", now)
    yield from _below(tree, "", width, now)


def _below(run: Mapping[str, Any], margin: str, width: int, now: float) -> Iterator[Line]:
    calls = run.get("delegations") or []
    for number, call in enumerate(calls, 1):
        is_last = number == len(calls)
        branch, inner = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        room = max(width - len(margin) - len(str(call.get("agent"))) - 20, _MIN_TEXT_WIDTH)
        task = one_line(str(call.get("task", "")), room)
        name = str(call.get("agent", ""))
        if below := call.get("run"):
            yield _run_line(below, name, margin + branch, now, task)
            yield from _below(below, margin + inner, width, now)
        else:
            yield _call_line(call, name, margin + branch, now, task)


def _run_line(run: Mapping[str, Any], name: str, margin: str, now: float, task: str = "") -> Line:
    status = str(run.get("status"))
    code = f" ({run['code']})" if run.get("code") else ""
    return (
        (margin, "dim"),
        (f"{name}  ", "bold"),
        (status + code, _STYLES.get(status, "red")),
        f"  {_took(run, now)}  {_tokens(run)}{_money(run)}",
        (f"  {run.get('run_id')}", "dim"),
        (f"  {task}" if task else "", ""),
    )


def _call_line(call: Mapping[str, Any], name: str, margin: str, now: float, task: str) -> Line:
    """Show a delegation whose run was not read: by what the caller's record says."""
    status = str(call.get("status"))
    child = call.get("child") or {}
    used = child.get("usage")
    tokens = f"  {used['prompt_tokens']} in, {used['completion_tokens']} out" if used else ""
    why = f"  ! {call['problem']}" if call.get("problem") else ""
    return (
        (margin, "dim"),
        (f"{name}  ", "bold"),
        (status, _STYLES.get(status, "red")),
        f"  {_took(call, now)}{tokens}",
        (f"  {child['task_id']}" if child.get("task_id") else "", "dim"),
        f"  {task}",
        (why, "yellow"),
    )


def _took(node: Mapping[str, Any], now: float) -> str:
    started = node.get("started_at")
    if started is None:
        return "?"
    return duration((node.get("ended_at") or now) - started)


def _tokens(run: Mapping[str, Any]) -> str:
    """Write what a run used itself, and with all below it."""
    own, below = run["usage"], run["children_usage"]
    names = ("prompt_tokens", "completion_tokens")
    text = " in, ".join(str(own[name]) for name in names) + " out"
    if not any(below[name] for name in names):
        return text
    whole = " in, ".join(str(own[name] + below[name]) for name in names) + " out"
    return f"{text} (with children {whole})"


def _money(run: Mapping[str, Any]) -> str:
    """Write what a run cost itself, and with all below it; nothing where nothing has a price."""
    own, below = (_amount(run.get(name)) for name in ("cost", "children_cost"))
    if not own + below:
        return ""
    whole = f" (with children {decimal_text(own + below)})" if below else ""
    return f"  cost {decimal_text(own)}{whole}"


def _amount(text: object) -> Decimal:
    return Decimal(str(text)) if text else Decimal(0)  # agents of earlier versions name none
