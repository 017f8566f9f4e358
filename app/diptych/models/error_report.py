"""Parses error bodies, in any of the shapes that model servers use.

Pure. The body comes from an error response, or is an error object inside a 200.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

_MAX_DEPTH = 12  # nested objects, and JSON inside strings
_STATUSES = range(400, 600)
# Fields that echo the request: user text must not be mistaken for the server's.
_ECHOES = frozenset({"input", "failed_generation", "ctx", "url", "request_id", "headers", "stack"})
_CODES = ("code", "type", "status", "error_type", "reason")
_ERROR_FIELDS = ("detail", "message", "error_msg", "msg", "errors", "fault")
_SENTENCES = ("error", "message", "detail", "msg", "error_msg", "errors", "errorMessage")


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error, as an endpoint reports it.

    `status` is the HTTP status; for an error object inside a 200, the status in the object, or 0.
    `sentence` is the human-readable message. `text` has every string of the body, lower-cased, one
    per line. `codes` are the machine-readable words, lower-cased. `params` pairs each parameter
    named by fields such as `param` or `loc` (a path such as `stream_options.include_usage`) with
    the complaint about it. `numbers` are the integer fields. `written` is the model output that
    the error quotes.
    """

    status: int
    sentence: str = ""
    text: str = ""
    codes: frozenset[str] = frozenset()
    params: tuple[tuple[str, str], ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    written: str = ""


def read_error_body(body: bytes, status: int) -> ErrorReport:
    """Parse the body of an error response; it need not be JSON."""
    try:
        found: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ErrorReport(status, text=body.decode(errors="replace").lower())
    return read_error(found, status)


def is_error(found: Mapping[str, Any]) -> bool:
    """Whether a response object is an error, although it has no `error` field."""
    return bool(
        found.get("object") == "error"  # vLLM, Mistral
        or found.get("type") == "error"  # Anthropic
        or found.get("success") is False
        or groq_error(found)
        or ("choices" not in found and any(found.get(name) for name in _ERROR_FIELDS))
    )


def groq_error(found: Mapping[str, Any]) -> str:
    """Return the error that Groq puts next to the choices, or ""."""
    extra = found.get("x_groq")
    return str(extra.get("error") or "") if isinstance(extra, dict) else ""


def read_error(found: object, status: int = 0) -> ErrorReport:
    """Parse an error object, or any other JSON sent in its place."""
    texts: list[str] = []
    codes: set[str] = set()
    params: list[tuple[str, str]] = []
    numbers: dict[str, int] = {}
    written = ""
    for mapping in _mappings(found, texts, _MAX_DEPTH):
        codes.update(str(mapping[name]).lower() for name in _CODES if mapping.get(name))
        params.extend(_named_parameters(mapping))
        numbers.update((k, v) for k, v in mapping.items() if type(v) is int)
        written = written or str(mapping.get("failed_generation") or "")  # Groq
    digits = [int(code) for code in codes if code.isascii() and code.isdigit() and len(code) < 4]  # noqa: PLR2004
    return ErrorReport(
        status=status or next((number for number in digits if number in _STATUSES), 0),
        sentence=_sentence(found),
        text="\n".join(texts).lower(),
        codes=frozenset(codes),
        params=tuple(params),
        numbers=numbers,
        written=written,
    )


def _mappings(found: object, texts: list[str], depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in an error, outermost first, and append their strings to `texts`."""
    if depth == 0:
        return
    if isinstance(found, str):
        texts.append(found)
        yield from _mappings(_json_in(found), texts, depth - 1)
    elif isinstance(found, list):
        for entry in found[:100]:
            yield from _mappings(entry, texts, depth - 1)
    elif isinstance(found, dict):
        yield found
        for name, value in found.items():
            if name not in _ECHOES:
                yield from _mappings(value, texts, depth - 1)


def _json_in(text: str) -> object:
    """Parse a string that contains JSON, such as OpenRouter's `raw`; None if it does not."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _named_parameters(mapping: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parameter in OpenAI's `param` or pydantic's `loc`, with the complaint about it."""
    said = " ".join(str(mapping.get(name) or "") for name in ("message", "msg", "type", "code"))
    if isinstance(mapping.get("param"), str) and mapping["param"]:
        yield mapping["param"], said.lower()
    if path := _location(mapping):
        yield path, said.lower()


def _location(mapping: Mapping[str, Any]) -> str:
    steps = mapping.get("loc")
    if not isinstance(steps, list):
        return ""
    return ".".join(str(step) for step in steps if step != "body")


def _sentence(found: object) -> str:
    """Find the human-readable message; join those of a list."""
    for _ in range(_MAX_DEPTH):
        if isinstance(found, list):
            if len(found) > 1 and all(isinstance(entry, dict) for entry in found):
                return "; ".join(filter(None, map(_entry_sentence, found[:3])))
            found = found[0] if found else None
        if isinstance(found, str):
            inner = _json_in(found)
            if inner is None:
                return found
            found = inner
        if not isinstance(found, dict):
            continue
        raw = found.get("metadata")
        if isinstance(raw, dict) and isinstance(raw.get("raw"), str):  # OpenRouter's upstream error
            found = raw["raw"]
        elif isinstance(found.get("loc"), list):
            return _entry_sentence(found)
        else:
            found = next((found[name] for name in _SENTENCES if found.get(name)), None)
    return ""


def _entry_sentence(entry: Mapping[str, Any]) -> str:
    """Format one entry of pydantic's error list as `parameter: message`."""
    said = entry.get("msg") or entry.get("message")
    if not isinstance(said, str):
        return ""
    place = _location(entry)
    return f"{place}: {said}" if place else said
