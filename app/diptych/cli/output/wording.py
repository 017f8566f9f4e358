"""How calls, texts and times are put into a few words. Pure.

Not here: where they are shown (`screen`), and when (`show`, `rows`).
"""

import json
from datetime import datetime
from typing import Any

from diptych.loop.catalog import Unavailable
from diptych.loop.codec import Record
from diptych.loop.messages import JSON

_SECOND, _MINUTE = 1.0, 60.0


def call_text(record: Record) -> str:
    """Write a call as a person would: `calculate(expression="2 + 2")`, `researcher: Find …`."""
    content: Any = record.content
    if record.event_type == "delegation_request":
        return f"{content['agent']}: {one_line(content['task'], 200)}"
    shown = ", ".join(f"{name}={_literal(value)}" for name, value in content["arguments"].items())
    return f"{content['tool']}({shown})"


def one_line(text: JSON, limit: int) -> str:
    """Put a text on one line of at most `limit` characters."""
    line = " ".join(text.split()) if isinstance(text, str) else _literal(text)
    return line if len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def duration(seconds: float) -> str:
    """Write a time as `12 ms`, `1.2 s` or `2 min 5 s`."""
    if seconds < _SECOND:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def clock_time(timestamp: float) -> str:
    """Write when something was, in local time, to the millisecond."""
    moment = datetime.fromtimestamp(timestamp).astimezone()
    return moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03}"


def missing_text(missing: Unavailable) -> str:
    """Say what an agent has to do without: `the tools of calculator: connection refused`."""
    what = "the tools of" if missing.kind == "server" else "the agent"
    return f"{what} {missing.name}: {missing.reason}"


def _literal(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
