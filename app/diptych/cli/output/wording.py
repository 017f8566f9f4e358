"""Calls, texts, durations and times in a few words. Pure."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from diptych.cli.output.odd_characters import with_odd_characters_shown
from diptych.core.catalog import Unavailable
from diptych.core.codec import Record
from diptych.core.messages import JSON

_SECOND, _MINUTE = 1.0, 60.0
_ASKED_CHARS = 4_000
"""Of a call that somebody decides on: what is cut off cannot be judged."""

CUT_ANSWERS = {
    "length": "the answer is not whole: the model's length limit cut it off",
    "content_filter": "the answer is not whole: a content filter cut it off",
}
"""What is said of an answer by its finish reason."""


def call_text(record: Record) -> str:
    """Write a call: `calculate(expression="2 + 2")` or `researcher: Find …`."""
    content: Any = record.content
    if "agent" in content:
        return f"{content['agent']}: {one_line(content['task'], 200)}"
    return tool_call_text(content["tool"], content["arguments"])


def tool_call_text(tool: object, arguments: Mapping[Any, Any]) -> str:
    """Write a call of a tool: `calculate(expression="2 + 2")`."""
    given = ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
    return f"{tool}({given})"


def asked_text(call: Mapping[str, Any]) -> str:
    """Write a call that somebody is asked about, on one line, so that nothing of it is hidden.

    Characters that cannot be seen stand there by their numbers; if the end is cut off, that is
    said.
    """
    if "agent" in call:
        what = f"{call['agent']}: {call['task']}"
    else:
        what = tool_call_text(call["tool"], call["arguments"])
    line = with_odd_characters_shown(" ".join(what.split()))
    cut = len(line) - _ASKED_CHARS
    return line if cut <= 0 else f"{line[:_ASKED_CHARS]}… and {cut} characters more"


def approval_text(approval: Mapping[str, Any]) -> str:
    """Write a call that waits, as `/v1/approvals` lists it, on one line."""
    what = asked_text(approval["call"])
    why = f" · {one_line(approval['reason'], 200)}" if approval["reason"] else ""
    text = f"{approval['run_id']}  {approval['call_id']}  {what}{why}"
    return f"{text}  · until {approval['expires_at']}"


def budget_text(used: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    """Write what a run has used: `budget: 1204 of 20000 tokens, 3 of 50 tool calls`."""
    amounts = [f"{used[name]} of {limits[name]} {name.replace('_', ' ')}" for name in limits]
    return f"budget: {', '.join(amounts)}"


def decision_text(record: Record) -> str:
    """Write a decision on a call: `reject by key:ci: too much`."""
    about = record.metadata
    by = "nobody, in time" if about.get("is_expired") else about.get("subject")
    reason = f": {about['reason']}" if about.get("reason") else ""
    return f"{record.content}{f' by {by}' if by else ''}{reason}"


def one_line(text: JSON, limit: int) -> str:
    """Write a text or a JSON value on one line of at most `limit` characters."""
    line = " ".join(text.split()) if isinstance(text, str) else _json(text)
    return line if len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def duration(seconds: float) -> str:
    """Write a duration as `12 ms`, `1.2 s` or `2 min 5 s`."""
    if seconds < _SECOND:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def clock_time(timestamp: float) -> str:
    """Write a Unix timestamp as local time, to the millisecond: `13:05:09.120`."""
    moment = datetime.fromtimestamp(timestamp).astimezone()
    return moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03}"


def unavailable_text(unavailable: Unavailable) -> str:
    """Write what an agent cannot use: `the tools of calculator: connection refused`."""
    names = {
        "server": "the tools of",
        "tool": "some tools of",
        "agent": "the agent",
        "rule": "the effect of",
    }
    what = names.get(unavailable.kind, unavailable.kind)
    return f"{what} {unavailable.name}: {unavailable.reason}"


def _json(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
