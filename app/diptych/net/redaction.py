"""Replaces the secrets that this process has read in what it shows: logs, errors, results.

A secret is found as it is, escaped for JSON or a URL, and in base64, also in a stream of pieces.
Redact before you shorten: a secret that is cut in half is not found.
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

MIN_CHARS = 8  # a shorter secret is not redacted: too many texts contain it by chance
MAX_SECRET_CHARS = 8_192
MAX_SECRETS = 64  # the newest; a renewed token is a new secret
MARK = "[redacted]"

_JWT = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", re.ASCII)

_DOTTED = re.compile(r"(?<![\w.-])[\w-]++(?:\.[\w-]++)++", re.ASCII)
"""May contain a JWT. It starts where nothing of it precedes, so that a text is scanned once."""

_URL_SEGMENT = 12  # characters from which a URL's segment is a secret rather than a word of an API


def without_tokens(text: str) -> str:
    """Replace every JSON Web Token in a text, known or not: callers put them into URLs."""
    if "eyJ" not in text:
        return text
    return _DOTTED.sub(lambda found: _without_tokens(found[0].split(".")), text)


class Redactor:
    """Remembers secrets, and replaces them with `[redacted]`."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}  # each with its forms, oldest first
        self._forms: tuple[str, ...] = ()  # of all secrets, longest first: one may contain another
        self._prefixes: frozenset[str] = frozenset()

    def remember(self, secret: str) -> None:
        """Redact a value from now on, also after it has been replaced by a newer one."""
        is_known = secret in self._secrets
        forms = self._secrets.pop(secret, None) or frozenset(
            form for part in _parts(secret) for form in _forms(part)
        )
        self._secrets[secret] = forms
        if is_known:
            return
        if len(self._secrets) > MAX_SECRETS:
            del self._secrets[next(iter(self._secrets))]
        every = frozenset[str]().union(*self._secrets.values())
        self._forms = tuple(sorted(every, key=len, reverse=True))
        self._prefixes = frozenset(form[:n] for form in every for n in range(1, len(form)))

    def redact(self, text: str) -> str:
        """Return the text without secrets; the same object if it contains none."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MARK)
        return text

    def redact_value(self, value: object) -> object:
        """Return a JSON value without secrets, in its keys either."""
        match value:
            case str():
                return self.redact(value)
            case list() if self._forms:
                return [self.redact_value(item) for item in value]
            case dict() if self._forms:
                return {self.redact(str(k)): self.redact_value(item) for k, item in value.items()}
            case _:
                return value

    def stream(self) -> "RedactedStream":
        """Return a redactor for a text that arrives in pieces."""
        return RedactedStream(self)

    def may_continue(self, text: str) -> int:
        """Return how many characters at the end of a text may begin a secret."""
        if not self._forms:
            return 0
        longest = min(len(text), len(self._forms[0]) - 1)
        return next((n for n in range(longest, 0, -1) if text[-n:] in self._prefixes), 0)


class RedactedStream:
    """Redacts a text that arrives in pieces; an end that may begin a secret is held back."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def add(self, text: str) -> str:
        """Take the next piece; return what can be shown by now."""
        whole = self._redactor.redact(self._held + text)
        end = len(whole) - self._redactor.may_continue(whole)
        self._held = whole[end:]
        return whole[:end]

    def end(self) -> str:
        """Return the rest, at the end of the text."""
        rest, self._held = self._held, ""
        return rest


SECRETS = Redactor()
"""The secrets of this process."""


def remembered(read: Callable[[], str | None]) -> Callable[[], str | None]:
    """Wrap a value provider: each value it returns is remembered as a secret."""

    def read_and_remember() -> str | None:
        value = read()
        if value:
            SECRETS.remember(value)
        return value

    return read_and_remember


async def redacted_output(call: Awaitable[CallOutput]) -> CallOutput:
    """Await a call; return its output, or raise its `CallError`, without secrets."""
    try:
        output = await call
    except CallError as error:
        error.message = SECRETS.redact(error.message)
        error.args = (error.message,)
        raise
    value = cast("JSON", SECRETS.redact_value(output.value))
    return replace(output, text=SECRETS.redact(output.text), value=value)


def _without_tokens(parts: list[str]) -> str:
    """Replace each JWT: header and claims, which are JSON, and the signature."""
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
    """Yield the secret parts of a value: a URL's password and long segments, else each word.

    `Bearer`, and the first and last line of a PEM, are not secret. Of a JWT only the signature is:
    other tokens share its head and claims, which open nothing.
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
    if len(part) < MIN_CHARS:
        return
    yield from (part, quote(part, safe=""), quote(part))
    yield from (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])
    raw = part.encode(errors="replace")
    for shift in range(3):  # base64 of any text that contains the secret
        encoded = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        whole = encoded[(shift * 8 + 5) // 6 : len(encoded) - 1]
        yield from (whole, whole.replace("+", "-").replace("/", "_"))
