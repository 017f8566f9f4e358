"""Calls, events, durations and times in a few words. Pure."""

import json
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from diptych.core.catalog import Unavailable
from diptych.core.messages import JSON

_SECOND, _MINUTE = 1.0, 60.0
_TEXT_CHARS = 200
_ASKED_CHARS = 4_000
"""For calls that wait for approval: people must see them whole."""

_ODD_CATEGORIES = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
_IGNORED = frozenset(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)
"""Others that Unicode calls default ignorable, and the blank of Braille.

The page shows the same characters by number (`http/page/text.js`).
"""


def call_text(call: Any) -> str:  # noqa: ANN401 - the content of an event, perhaps a stranger's
    """Write a call: `calculate(expression="2 + 2")` or `researcher: Find …`."""
    match call:
        case {"tool": tool, "arguments": {**arguments}}:
            given = ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
            return f"{tool}({given})"
        case {"agent": agent, "task": task}:
            return f"{agent}: {task}"
        case _:
            return str(call)


def asked_text(call: Mapping[str, Any]) -> str:
    """Write a call that somebody is asked about, on one line, so that nothing of it is hidden.

    Characters that cannot be seen are written by their numbers, as `⟨U+200B⟩`. If the end is cut
    off, the line says so.
    """
    return _asked_line(call_text(call))


def _asked_line(text: str) -> str:
    line = visible(" ".join(text.split()))
    cut = len(line) - _ASKED_CHARS
    return line if cut <= 0 else f"{line[:_ASKED_CHARS]}… and {cut} characters more"


def visible(text: str) -> str:
    """Write characters that cannot be seen by their numbers, as `⟨U+200B⟩`."""
    return "".join(f"⟨U+{ord(char):04X}⟩" if _is_odd(char) else char for char in text)


def question_text(message: str, kind: str, url: str = "") -> str:
    """Write a tool's question on one line, with the host of its link before the link."""
    text = _asked_line(message)
    match kind:
        case "form":
            return text
        case "caller_tool":
            return f"{text} (its caller answers it)"
        case "sign_in" if not url:  # it names the command
            return text
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except ValueError:
        host = ""
    if not host or parts.scheme not in {"http", "https"}:
        return f"{text} (its link is no web address: do not open it)"
    what = "sign in at" if kind == "sign_in" else "it asks you to open a page of"
    return f"{text} · {what} {host}, if you trust it: {visible(url)}"


def input_text(asked: Mapping[str, Any]) -> str:
    """Write a question that waits, as `/v1/inputs` lists it, on one line."""
    text = question_text(asked["message"], asked["kind"], asked.get("url") or "")
    fields = ", ".join((asked.get("schema") or {}).get("properties") or ())
    shown = f" · fields: {fields}" if fields else ""
    return f"{asked['run_id']}  {asked['call_id']}  {text}{shown}  · until {asked['expires_at']}"


def approval_text(approval: Mapping[str, Any]) -> str:
    """Write a call that waits, as `/v1/approvals` lists it, on one line."""
    why = f" · {one_line(approval['reason'], _TEXT_CHARS)}" if approval["reason"] else ""
    text = f"{approval['run_id']}  {approval['call_id']}  {asked_text(approval['call'])}{why}"
    return f"{text}  · until {approval['expires_at']}"


def budget_text(used: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    """Write what a run has used: `budget: 1204 of 20000 tokens, 3 of 50 tool calls`."""
    amounts = [f"{used[name]} of {limits[name]} {name.replace('_', ' ')}" for name in limits]
    return f"budget: {', '.join(amounts)}"


def event_text(kind: str, content: Any, metadata: Mapping[str, Any]) -> str:  # noqa: ANN401 - JSON
    """Write what an event says, on one line."""
    text = content if isinstance(content, str) else ""
    match kind:
        case "tool_call" | "delegation_request":
            text = call_text(content)
        case "approval_requested":
            why = metadata.get("reason")
            text = call_text(content) + (f" · {why}" if why else "")
        case "approval_decided" | "input_received":
            by = "nobody, in time" if metadata.get("is_expired") else metadata.get("subject")
            why = metadata.get("reason")
            text += (f" by {by}" if by else "") + (f": {why}" if why else "")
        case "input_requested":
            text = question_text(text, str(metadata.get("kind")), str(metadata.get("url") or ""))
        case "user_message" if "resumes" in metadata and not content:
            text = f"goes on with {metadata['resumes']}"
        case "action_error":
            text = f"{metadata.get('error_type')}: {text}"
        case "offered" if "action_format" in metadata:
            text = f"{metadata['action_format']} tool calls · {text}"
        case "action_format":
            text = f"{text}: {metadata.get('reason')}"
        case "failed" if "code" in metadata:
            text = f"{metadata['code']}: {text}"
    return " ".join(text.split())


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


def _is_odd(char: str) -> bool:
    if char.isascii() and char.isprintable():
        return False
    category = unicodedata.category(char)
    if category == "Zs":
        return char != " "
    return category in _ODD_CATEGORIES or ord(char) in _IGNORED


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
