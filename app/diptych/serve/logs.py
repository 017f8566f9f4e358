"""Logging to stderr, as text or JSON lines (`LOG_LEVEL`, `LOG_FORMAT`).

Keys, headers and conversations are never logged: known secrets and all JSON Web Tokens are
redacted, and an SDK's records are reduced to their kind, as their texts quote requests.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

import orjson

from diptych.core.text import shortened
from diptych.net.redaction import SECRETS, without_tokens

MAX_ARGUMENT_CHARS = 1_000  # of an id or another text within a message
MAX_MESSAGE_CHARS = 8_000
MAX_EXCEPTION_CHARS = 32_000

_VERBOSE_LIBRARIES = ("aiohttp", "asyncio", "uvicorn")
"""Only their warnings and errors are logged, whatever the level."""

_SDKS = ("a2a", "httpcore", "httpcore2", "httpx", "httpx2", "mcp")
"""Of their warnings and errors only the kind is logged."""


_SILENT = ("opentelemetry", "urllib3")
"""They quote variables and what collectors answer; `telemetry` logs in their place."""


def set_up_logging(level: str, form: Literal["text", "json"]) -> None:
    """Log records of `level` and above to stderr, in place of any earlier set-up."""
    # No line says these, and each would ask for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in (*_VERBOSE_LIBRARIES, *_SDKS):
        logging.getLogger(name).setLevel(max(logging.getLevelName(level), logging.WARNING))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def show_trace_ids(read: Callable[[], Mapping[str, str]]) -> None:
    """Add the trace that `read` returns to each line of JSON."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, _JsonFormatter):
            handler.formatter.trace_ids = read


def _message(record: logging.LogRecord) -> str:
    """Return a record's message, bounded and without secrets."""
    if record.name.partition(".")[0] in _SDKS:
        kind = record.exc_info[0] if record.exc_info else None
        return f"reports {kind.__name__ if kind else 'a problem'} (line {record.lineno})"
    if record.args and isinstance(record.args, tuple):
        record.args = tuple(map(_argument, record.args))
    text = without_tokens(record.getMessage() if record.args else str(record.msg))
    return shortened(SECRETS.redact(text), MAX_MESSAGE_CHARS)


def _argument(value: object) -> object:
    if not isinstance(value, str):
        return value
    return shortened(SECRETS.redact(without_tokens(value)), MAX_ARGUMENT_CHARS)


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the stack of a record's exception, its last part if it is long; empty if none."""
    if not record.exc_info or record.name.partition(".")[0] in _SDKS:
        return ""
    stack = without_tokens(formatter.formatException(record.exc_info))
    return SECRETS.redact(stack)[-MAX_EXCEPTION_CHARS:]


def _escaped(text: str) -> str:
    """Escape control characters and invisible ones."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record)
        line = f"{when} {record.levelname:<7} {record.name}: {_escaped(_message(record))}"
        if not record.exc_info:
            return line
        stack = _exception(self, record)
        return "\n".join([line, *map(_escaped, stack.splitlines())])


class _JsonFormatter(logging.Formatter):
    trace_ids: Callable[[], Mapping[str, str]] | None = None

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if self.trace_ids:
            shown |= self.trace_ids()
        if stack := _exception(self, record):
            shown["exception"] = stack
        return orjson.dumps(shown, default=str).decode()
