"""Takes the secrets that this process has read out of what it shows: logs, errors, results.

A secret is found whole, reversed, in base64, in hexadecimal and with its characters escaped for a
URL or for JSON; and every piece of one that has 8 characters. A text is looked at once, with no
backtracking: a window of 8 characters that is a piece of a secret holds a window of 4 at a place
divisible by 5, so only every fifth place is looked up.

Not here: where secrets are read (`config.references`), and which texts are shown.
"""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import cast
from urllib.parse import quote, unquote, urlsplit

from diptych.errors import CallError
from diptych.loop.messages import JSON, CallOutput

PIECE = 8
"""Characters of a secret that are taken out, even without the rest. A shorter secret is no secret:
too many texts would hold it by chance."""

MAX_SECRET_CHARS = 8_192
MAX_SECRETS = 64  # the newest; a token that is renewed is a new one
MARK = "[redacted]"

_URL_SEGMENT = 12  # characters that make a segment of a URL a secret, and no word of an API
_PROBE, _STEP = 4, 5  # every window of 8 holds one of 4 that begins at a multiple of 5


class Redactor:
    """The secrets of a process, and what takes them out of texts."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}  # with their pieces, in order of arrival
        self._pieces: frozenset[str] = frozenset()
        self._probes: frozenset[str] = frozenset()
        self._starts: frozenset[str] = frozenset()

    def remember(self, secret: str) -> None:
        """Take a value for a secret from now on, also when it is no longer the current one."""
        if secret in self._secrets:
            return
        forms = {form for part in _parts(secret) for form in _forms(part)}
        self._secrets[secret] = frozenset(
            form[n : n + PIECE] for form in forms for n in range(len(form) - PIECE + 1)
        )
        if len(self._secrets) > MAX_SECRETS:
            del self._secrets[next(iter(self._secrets))]
        pieces = frozenset().union(*self._secrets.values())
        self._probes = frozenset(p[n : n + _PROBE] for p in pieces for n in range(_STEP))
        self._starts = frozenset(p[:n] for p in pieces for n in range(1, PIECE))
        self._pieces = pieces

    def redact(self, text: str) -> str:
        """Give a text without secrets; the same object if it holds none."""
        spans = list(self._spans(text))
        if not spans:
            return text
        shown, position = [], 0
        for start, end in spans:
            shown += [text[position:start], MARK]
            position = end
        return "".join((*shown, text[position:]))

    def redact_value(self, value: object) -> object:
        """Give a JSON value without secrets, in its keys neither."""
        match value:
            case str():
                return self.redact(value)
            case list() if self._pieces:
                return [self.redact_value(item) for item in value]
            case dict() if self._pieces:
                return {self.redact(str(k)): self.redact_value(item) for k, item in value.items()}
            case _:
                return value

    def stream(self) -> "RedactedStream":
        """Give what redacts a text that comes piece by piece."""
        return RedactedStream(self)

    def may_continue(self, text: str) -> int:
        """Say how many characters at the end of a text may begin a piece of a secret."""
        for size in range(min(PIECE - 1, len(text)), 0, -1):
            if text[-size:] in self._starts:
                return size
        return 0

    def _spans(self, text: str) -> Iterator[tuple[int, int]]:
        probes, pieces = self._probes, self._pieces
        if not probes:
            return
        start = end = -1
        for probe in range(0, len(text) - _PROBE + 1, _STEP):
            if text[probe : probe + _PROBE] not in probes:
                continue
            for n in range(max(probe - _STEP + 1, 0), probe + 1):
                if text[n : n + PIECE] not in pieces:
                    continue
                if n > end:
                    if end >= 0:
                        yield start, end
                    start = n
                end = n + PIECE
        if end >= 0:
            yield start, end


class RedactedStream:
    """Redacts a text that comes piece by piece; it holds back what may begin a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def add(self, text: str) -> str:
        """Take the next piece; give what can be shown by now."""
        text = self._redactor.redact(self._held + text)
        size = self._redactor.may_continue(text)
        self._held = text[len(text) - size :]
        return text[: len(text) - size]

    def end(self) -> str:
        """Give the rest, at the end of the text."""
        held, self._held = self._held, ""
        return held


SECRETS = Redactor()
"""The secrets of this process."""


def remembered(read: Callable[[], str | None]) -> Callable[[], str | None]:
    """Give a value provider whose values are remembered as secrets when they are read."""

    def read_and_remember() -> str | None:
        value = read()
        if value:
            SECRETS.remember(value)
        return value

    return read_and_remember


async def redacted_output(call: Awaitable[CallOutput]) -> CallOutput:
    """Wait for a call; give its output, or raise its `CallError`, without secrets."""
    try:
        output = await call
    except CallError as error:
        error.message = SECRETS.redact(error.message)
        error.args = (error.message,)
        raise
    value = cast("JSON", SECRETS.redact_value(output.value))
    return replace(output, text=SECRETS.redact(output.text), value=value)


def _parts(secret: str) -> Iterator[str]:
    """Give what is secret in a value: of a URL its password and long segments, else each word.

    `Bearer`, and the first and last line of a PEM, are no secrets.
    """
    if "://" in secret:
        yield from _parts_of_url(secret.strip())
        return
    for line in secret[:MAX_SECRET_CHARS].splitlines():
        yield from (word for word in line.split() if not line.startswith("-----"))


def _parts_of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
        yield unquote(parts.password or "")
    except ValueError:
        yield url
        return
    for segment in re.split(r"[/?&=#]", f"{parts.path}?{parts.query}"):
        if len(segment) >= _URL_SEGMENT:
            yield segment


def _forms(part: str) -> Iterator[str]:
    """Give the ways to write a secret, each at least a piece long."""
    if len(part) < PIECE:
        return
    raw = part.encode(errors="replace")
    yield from (part, part[::-1], raw.hex(), raw.hex().upper())
    yield from (quote(part, safe=""), quote(part), json.dumps(part)[1:-1])
    yield json.dumps(part, ensure_ascii=False)[1:-1]
    for shift in range(3):  # as base64 of a text in which the secret stands anywhere
        encoded = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        whole = encoded[(shift * 8 + 5) // 6 : len(encoded) - 1]
        yield from (whole, whole[::-1], whole.replace("+", "-").replace("/", "_"))
