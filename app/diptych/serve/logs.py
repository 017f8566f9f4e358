"""Logging of a process: to stderr, as lines of text or of JSON (`LOG_LEVEL`, `LOG_FORMAT`).

No key, header or message of a conversation is ever logged.

Not here: what is logged.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import orjson

_VERBOSE_LIBRARIES = ("a2a", "aiohttp", "asyncio", "httpcore", "httpx", "httpx2", "mcp", "uvicorn")
"""Libraries of which only warnings and errors are logged, whatever the level."""


def set_up_logging(level: str, form: Literal["text", "json"]) -> None:
    """Log records of `level` and above to stderr, in place of any earlier set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _VERBOSE_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.getLevelName(level), logging.WARNING))


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(shown, default=str).decode()
