"""Takes the secrets that this process has read out of what it shows: logs, errors, results.

A secret is found whole, reversed, in base64, in hexadecimal and with its characters escaped for a
URL or for JSON; and every piece of one that has 8 characters. A text is looked at once, with no
backtracking: a window of 8 characters that is a piece of a secret holds a window of 4 at a place
divisible by 5, so only every fifth place is looked up.
"""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import cast
from urllib.parse import quote, unquote, urlsplit

from diptych.core.errors import CallError
from diptych.core.messages import JSON, CallOutput

PIECE = 8
"""Characters of a secret that are taken out, even without the rest. A shorter secret is no secret:
too many texts would hold it by chance."""

MAX_SECRET_CHARS = 8_192
MAX_SECRETS = 128  # the newest; a token that is renewed is a new one
MARK = "[redacted]"

_JWT = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", re.ASCII)

_DOTTED = re.compile(r"(?<![\w.-])[\w-]++(?:\.[\w-]++)++", re.ASCII)
"""What may hold a JWT. It begins where nothing of it precedes, so that a text is read once."""

_URL_SEGMENT = 12  # characters that make a segment of a URL a secret, and no word of an API
_PROBE, _STEP = 4, 5  # every window of 8 holds one of 4 that begins at a multiple of 5


def without_tokens(text: str) -> str:
    """Take every JSON Web Token out of a text, whoever's it is; callers put them into URLs, too.

    Use it before a text is cut: of a token that is cut before its claims the rest is not known.
    """
    if "eyJ" not in text:
        return text
    return _DOTTED.sub(lambda found: _without_tokens(found[0].split(".")), text)


class Redactor:
    """The secrets of a process, and what takes them out of texts."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}  # with their pieces, in order of arrival
        self._pieces: dict[str, int] = {}  # each with how many secrets have it
        self._probes: dict[str, int] = {}

    def remember(self, secret: str) -> None:
        """Take a value for a secret from now on, also when it is no longer the current one."""
        if (pieces := self._secrets.pop(secret, None)) is not None:
            self._secrets[secret] = pieces  # in use, so not the next to be forgotten
            return
        forms = {form for part in _parts(secret) for form in _forms(part)}
        self._secrets[secret] = frozenset(
            form[n : n + PIECE] for form in forms for n in range(len(form) - PIECE + 1)
        )
        self._count(self._secrets[secret], 1)
        if len(self._secrets) > MAX_SECRETS:
            self._count(self._secrets.pop(next(iter(self._secrets))), -1)

    def redact(self, text: str) -> str:
        """Give a text without secrets; the same object if it holds none."""
        if not self._probes:
            return text
        spans = list(self.spans(text))
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
        """Say how many characters at the end of a text, 4 to 7, may begin a piece of a secret."""
        for size in range(min(PIECE - 1, len(text)), _PROBE - 1, -1):
            tail = text[len(text) - size :]
            if tail[:_PROBE] in self._probes and tail[-_PROBE:] in self._probes:
                return size
        return 0

    def _count(self, pieces: frozenset[str], by: int) -> None:
        """Add the pieces of a secret to what is looked up, or take them away (`by` is -1)."""
        probes = {p[n : n + _PROBE] for p in pieces for n in range(_STEP)}
        for counts, found in ((self._pieces, pieces), (self._probes, probes)):
            for each in found:
                if left := counts.get(each, 0) + by:
                    counts[each] = left
                else:
                    del counts[each]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Give where secrets begin and end, in order; none overlap."""
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
    """Redacts a text that comes piece by piece.

    It holds back four to seven characters where these may begin a piece of a secret. So of a secret
    that comes bit by bit the first three characters are shown, and no more.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = ""  # the last characters that were dealt with, as they came
        self._held = ""
        self._is_in_secret = False  # where `_before` ends

    def add(self, text: str) -> str:
        """Take the next piece; give what can be shown by now."""
        whole = self._before + self._held + text
        size = self._redactor.may_continue(whole)
        return self._show(whole, max(len(whole) - size, len(self._before)))

    def end(self) -> str:
        """Give the rest, at the end of the text."""
        whole = self._before + self._held
        return self._show(whole, len(whole))

    def _show(self, whole: str, end: int) -> str:
        """Give what is to be shown from the end of `_before` to `end`; hold the rest."""
        position = len(self._before)
        shown = []
        is_in_secret = self._is_in_secret and position == end
        for first, last in self._redactor.spans(whole):
            if last <= position or first >= end:
                continue
            if first > position or not self._is_in_secret:
                shown += [whole[position:first], MARK]
            position = min(last, end)
            is_in_secret = position == end
        shown.append(whole[position:end])
        self._is_in_secret = is_in_secret
        self._before, self._held = whole[max(end - PIECE + 1, 0) : end], whole[end:]
        return "".join(shown)


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


def _without_tokens(parts: list[str]) -> str:
    """Take out what a JWT consists of: header and claims, which are JSON, and the signature."""
    shown, n = [], 0
    while n < len(parts):
        start = parts[n].find("eyJ")
        if start >= 0 and n + 1 < len(parts) and parts[n + 1].startswith("eyJ"):
            shown.append(parts[n][:start] + MARK)
            n += 3
        else:
            shown.append(parts[n])
            n += 1
    return ".".join(shown)


def _parts(secret: str) -> Iterator[str]:
    """Give what is secret in a value: of a URL its password and long segments, else each word.

    `Bearer`, and the first and last line of a PEM, are no secrets. Of a JWT only the signature is
    one: its head and its claims stand in other tokens, too, and open nothing.
    """
    if "://" in secret:
        yield from _parts_of_url(secret.strip())
        return
    for line in secret[:MAX_SECRET_CHARS].splitlines():
        for word in line.split() if not line.startswith("-----") else ():
            yield word.rpartition(".")[2] if _JWT.fullmatch(word) else word


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
