"""Logging of a process: to stderr, as lines of text or of JSON (`LOG_LEVEL`, `LOG_FORMAT`).

A line is written before whoever logs it goes on. Only records with `may_wait` (the audit has one
for each call that is allowed) wait for others on an event loop, as it takes a third of the time to
write several: until the loop turns after `MAX_WAIT_SECONDS`, the next line that may not wait, or
the end of the process.

No key, header or message of a conversation is ever logged: the secrets that this process has read
are taken out, and all JSON Web Tokens; of what the SDKs report it is only logged that they do, for
their texts hold what was sent.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

from diptych.core.text import shortened
from diptych.net.redaction import SECRETS, without_tokens

MAX_ARGUMENT_CHARS = 1_000  # of an id or another text within a message
MAX_MESSAGE_CHARS = 8_000
MAX_EXCEPTION_CHARS = 32_000
MAX_WAIT_SECONDS = 0.05
_MOST_WAITING = 100  # records

_VERBOSE_LIBRARIES = ("aiohttp", "asyncio", "uvicorn")
"""Libraries of which only warnings and errors are logged, whatever the level."""

_SDKS = ("a2a", "httpcore", "httpcore2", "httpx", "httpx2", "mcp")
"""Libraries of which it is only logged that they have a warning or error, and of which kind."""


_SILENT = ("opentelemetry", "urllib3")
"""They tell what variables hold and collectors answer; `adapters.telemetry` speaks for them."""


def set_up_logging(level: str, form: Literal["text", "json"]) -> None:
    """Log records of `level` and above to stderr, in place of any earlier set-up."""
    # No line says these, and each would ask for them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = _LineHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in (*_VERBOSE_LIBRARIES, *_SDKS):
        logging.getLogger(name).setLevel(max(logging.getLevelName(level), logging.WARNING))
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def show_trace_ids(read: Callable[[], Mapping[str, str]]) -> None:
    """Have each line of JSON say, by `read`, in which trace it was logged."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler) and isinstance(handler.formatter, _JsonFormatter):
            handler.formatter.trace_ids, handler.lets_wait = read, False


def _message(record: logging.LogRecord) -> str:
    """Give a record's message, bounded and without secrets."""
    if record.name.partition(".")[0] in _SDKS:
        kind = record.exc_info[0] if record.exc_info else None
        return f"reports {kind.__name__ if kind else 'a problem'} (line {record.lineno})"
    if record.args and isinstance(record.args, tuple):
        record.args = tuple(
            shortened(SECRETS.redact(without_tokens(each)), MAX_ARGUMENT_CHARS)
            if isinstance(each, str)
            else each
            for each in record.args
        )
    text = without_tokens(record.getMessage() if record.args else str(record.msg))
    return shortened(SECRETS.redact(text), MAX_MESSAGE_CHARS)


def _argument(value: object) -> object:
    if not isinstance(value, str):
        return value
    return shortened(SECRETS.redact(without_tokens(value)), MAX_ARGUMENT_CHARS)


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Give the stack of a record's exception, its last part if it is long; empty if none."""
    if not record.exc_info or record.name.partition(".")[0] in _SDKS:
        return ""
    stack = without_tokens(formatter.formatException(record.exc_info))
    return SECRETS.redact(stack)[-MAX_EXCEPTION_CHARS:]


def _escaped(text: str) -> str:
    """Write characters that a terminal would obey, and those that nobody sees, as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes records in their order. Nothing filters here, so it takes one step and not six."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting: list[logging.LogRecord] = []
        self._flushing: asyncio.AbstractEventLoop | None = None  # that will flush what waits
        self.lets_wait = True
        """Whether records may wait; not if a line says something of where it was logged."""

    def handle(self, record: logging.LogRecord) -> bool:
        with self.lock or nullcontext():
            self._waiting.append(record)
            if not (getattr(record, "may_wait", False) and self._will_flush()):
                self.flush()
        return True

    def _will_flush(self) -> bool:
        """Have what waits written soon, if it may wait and there is an event loop that can.

        What a loop that has ended was to write, the next one does.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if not self.lets_wait or len(self._waiting) >= _MOST_WAITING:
            return False
        if loop is not self._flushing:
            self._flushing = loop
            loop.call_later(MAX_WAIT_SECONDS, self.flush)
        return True

    def close(self) -> None:
        """Write what waits before another handler takes the place of this one."""
        self.flush()
        super().close()

    def flush(self) -> None:
        """Write what waits, in one piece; `logging.shutdown` does so at the end of the process."""
        with self.lock or nullcontext():
            if not (records := self._waiting):
                return
            self._waiting, self._flushing, lines = [], None, list[str]()
            for record in records:
                try:
                    lines.append(self.format(record) + self.terminator)
                except Exception:  # noqa: BLE001 - as `emit` of the library
                    self.handleError(record)
            try:
                self.stream.write("".join(lines))
                self.stream.flush()
            except Exception:  # noqa: BLE001 - as `emit` of the library
                self.handleError(records[-1])


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._second, self._time = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        if (second := int(record.created)) != self._second:
            self._time = time.strftime(self.default_time_format, time.localtime(second))
            self._second = second
        when = f"{self._time},{int(record.msecs):03d}"
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
