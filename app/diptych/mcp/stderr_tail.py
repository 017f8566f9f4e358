"""What a child process writes to stderr: each line to the log, the last lines as a reason."""

import logging
import re
from collections import deque
from collections.abc import Sequence

import anyio
from anyio.abc import ByteReceiveStream

from diptych.net.redaction import SECRETS

logger = logging.getLogger(__name__)

MAX_LINES = 3  # of a reason
MAX_LINE_CHARS = 200  # of a line in a reason
MAX_LOGGED_CHARS = 1000  # of a line in the log
MAX_LINE_BYTES = 64 * 1024  # of a line that is read; the rest of it is dropped
MIN_SECRET_CHARS = 4  # shorter ones would take too much out of a text

_TERMINAL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class StderrTail:
    """Reads stderr to its end. No line that it gives holds a secret or a control character."""

    def __init__(self, secrets: Sequence[str]) -> None:
        parts = {part for secret in secrets for part in _printable(secret).split()}
        long_parts = [part for part in parts if len(part) >= MIN_SECRET_CHARS]
        self._secrets = sorted(long_parts, key=len, reverse=True)  # one may hold another
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._is_closed = anyio.Event()

    async def read(self, stream: ByteReceiveStream) -> None:
        """Read until the child, and whoever has inherited its stderr, closes it."""
        partial = b""
        try:
            while True:
                *lines, partial = (partial + await stream.receive()).split(b"\n")
                for line in lines:
                    self._add(line)
                partial = partial[:MAX_LINE_BYTES]
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            self._add(partial)
            self._is_closed.set()

    async def last_lines(self, seconds: float) -> str:
        """Wait for the end of stderr, at most so many seconds; give its last lines as one."""
        with anyio.move_on_after(seconds):
            await self._is_closed.wait()
        return " | ".join(self._lines)

    def _add(self, line: bytes) -> None:
        text = _printable(line.decode(errors="replace"))
        for secret in self._secrets:  # now that no terminal sequence stands within one
            text = text.replace(secret, "…")
        text = SECRETS.redact(text)  # pieces, other ways to write them, and other secrets
        if text:
            logger.debug("%s", text[:MAX_LOGGED_CHARS])
            is_long = len(text) > MAX_LINE_CHARS
            self._lines.append(text[: MAX_LINE_CHARS - 1] + "…" if is_long else text)


def _printable(text: str) -> str:
    """Give a text without terminal sequences, control characters and white space in a row."""
    text = _TERMINAL_SEQUENCE.sub("", text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
