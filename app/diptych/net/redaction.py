"""Redacts the secrets that this process has read from logs, errors and results.

Finds a secret verbatim, JSON-escaped, URL-encoded and in base64, also across pieces of a stream.
Redact before shortening: half a secret is not recognised.
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

MIN_CHARS = 8  # shorter secrets are not redacted: too many texts contain them by chance
MAX_SECRET_CHARS = 8_192
MAX_SECRETS = 64  # the newest; a renewed token is a new secret
MARK = "[redacted]"

_JWT = re.compile(r"eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+", re.ASCII)

_DOTTED = re.compile(r"(?<![\w.-])[\w-]++(?:\.[\w-]++)++", re.ASCII)
"""A dotted word, which may contain a JWT. Anchored at its start, so a text is scanned only once."""

_URL_SEGMENT = 12  # characters from which a segment of a URL counts as a secret


def without_tokens(text: str) -> str:
    """Redact every JSON Web Token in a text, known or not: callers put them into URLs."""
    if "eyJ" not in text:
        return text
    return _DOTTED.sub(lambda found: _without_tokens(found[0].split(".")), text)


class Redactor:
    """Remembers secrets, and replaces them by `[redacted]`."""

    def __init__(self) -> None:
        self._secrets: dict[str, frozenset[str]] = {}  # each with its encodings, oldest first
        self._forms: tuple[str, ...] = ()  # all encodings, longest first: one may contain another
        self._prefixes: frozenset[str] = frozenset()

    def remember(self, secret: str) -> None:
        """Redact a value from now on, even after it was replaced by a newer one."""
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
        """Return the text with secrets redacted; the same object if it contains none."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MARK)
        return text

    def redact_value(self, value: object) -> object:
        """Return a JSON value with secrets redacted, in values and keys."""
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
        """Return how many characters at the end of a text may be the start of a secret."""
        if not self._forms:
            return 0
        longest = min(len(text), len(self._forms[0]) - 1)
        return next((n for n in range(longest, 0, -1) if text[-n:] in self._prefixes), 0)


class RedactedStream:
    """Redacts a text that arrives in pieces; holds back an end that may start a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def add(self, text: str) -> str:
        """Add the next piece; return the text that is safe to show."""
        whole = self._redactor.redact(self._held + text)
        end = len(whole) - self._redactor.may_continue(whole)
        self._held = whole[end:]
        return whole[:end]

    def end(self) -> str:
        """Return the text held back, at the end of the stream."""
        rest, self._held = self._held, ""
        return rest


SECRETS = Redactor()
"""The secrets that this process has read."""


def remembered(read: Callable[[], str | None]) -> Callable[[], str | None]:
    """Wrap a value provider so that its values are redacted from now on."""

    def read_and_remember() -> str | None:
        value = read()
        if value:
            SECRETS.remember(value)
        return value

    return read_and_remember


async def redacted_output(call: Awaitable[CallOutput]) -> CallOutput:
    """Await a call; return its output, or raise its `CallError`, with secrets redacted."""
    try:
        output = await call
    except CallError as error:
        error.message = SECRETS.redact(error.message)
        error.args = (error.message,)
        raise
    value = cast("JSON", SECRETS.redact_value(output.value))
    return replace(output, text=SECRETS.redact(output.text), value=value)


def _without_tokens(parts: list[str]) -> str:
    """Redact each JWT in the parts of a dotted word: two parts of JSON, and the signature."""
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

    Short words such as `Bearer`, and the first and last line of a PEM, do not count. In a JWT only
    the signature does: other tokens share its header and claims, which grant nothing.
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
    for shift in range(3):  # base64 of a longer text with the secret at any offset
        encoded = base64.b64encode(bytes(shift) + raw).decode().rstrip("=")
        whole = encoded[(shift * 8 + 5) // 6 : len(encoded) - 1]
        yield from (whole, whole.replace("+", "-").replace("/", "_"))
