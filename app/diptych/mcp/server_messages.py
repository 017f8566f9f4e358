"""Log messages of servers, and their requests that we refuse."""

import json
import logging
import time

import mcp_types

from diptych.core.text import one_line
from diptych.mcp.questions import refusal
from diptych.net.redaction import SECRETS

logger = logging.getLogger(__name__)

MAX_CHARS = 1_000  # of a message
MAX_PER_MINUTE = 100

_LEVELS: dict[mcp_types.LoggingLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


def wanted_level() -> mcp_types.LoggingLevel:
    """Return the least level that reaches our log."""
    wanted = logger.getEffectiveLevel()
    return next((name for name, level in _LEVELS.items() if level >= wanted), "emergency")


class ServerMessages:
    """Logs a server's messages, redacted and at their level, and the kinds of requests refused."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._refused: set[str] = set()
        self._minute = 0.0
        self._count = 0

    async def log(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        """Log a message, unless there were too many in the last minute."""
        level = _LEVELS[params.level]
        if not logger.isEnabledFor(level):
            return
        now = time.monotonic()
        if now - self._minute > 60:  # noqa: PLR2004 - seconds
            self._minute, self._count = now, 0
        self._count += 1
        if self._count == MAX_PER_MINUTE + 1:
            logger.warning("tool server %s logs too much; its next are dropped", self._server)
        if self._count > MAX_PER_MINUTE:
            return
        said = params.data
        text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False, default=str)
        text = one_line(SECRETS.redact(f"{params.logger}: {text}" if params.logger else text))
        logger.log(level, "tool server %s: %s", self._server, text[:MAX_CHARS])

    def refuse(self, method: str) -> mcp_types.ErrorData:
        """Return the error for a request that is not supported; the first of a kind is logged."""
        if method not in self._refused:
            self._refused.add(method)
            logger.warning("tool server %s requests %s", self._server, refusal(method))
        return mcp_types.ErrorData(
            code=mcp_types.METHOD_NOT_FOUND, message=f"it requests {refusal(method)}"
        )
