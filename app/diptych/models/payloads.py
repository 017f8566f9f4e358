"""One payload of the chat completions API as a JSON object, or the error that it reports."""

import json
from typing import Any

import orjson

from diptych.models.error_report import ErrorReport, read_error
from diptych.models.failures import ReportedError, malformed_reply


def error_event(payload: bytes) -> ReportedError:
    """Read what an `event: error` carries: an error object, or a sentence."""
    try:
        return ReportedError(read_error(orjson.loads(payload)))
    except orjson.JSONDecodeError:
        return ReportedError(_in_words(payload))


def decode_object(payload: bytes) -> dict[str, Any]:
    """Decode a reply. Raises `ReportedError` if it is an error; `AttemptFailure` if no object."""
    try:
        return _object(_parsed(payload))
    except (ValueError, RecursionError) as error:
        raise malformed_reply("something that is not JSON") from error


def decode_chunk(payload: bytes) -> dict[str, Any]:
    """Decode a chunk. Raises as `decode_object`, and `ReportedError` for what is no JSON.

    A server that has begun to stream speaks the API: such a chunk is a failure of its own.
    """
    try:
        found = orjson.loads(payload)
    except orjson.JSONDecodeError:
        try:
            found = _parsed(payload)
        except (ValueError, RecursionError):
            raise ReportedError(_in_words(payload)) from None
    if isinstance(found, dict) and not found.get("error"):
        return found
    return _object(found)


def _parsed(payload: bytes) -> object:
    """Parse JSON, also what orjson refuses but servers send: NaN, surrogates, invalid UTF-8."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return json.loads(payload.decode(errors="replace"))


def _object(found: object) -> dict[str, Any]:
    if isinstance(found, list) and len(found) == 1:
        found = found[0]  # Gemini wraps its errors
    if not isinstance(found, dict):
        raise malformed_reply("JSON that is no object")
    if found.get("error"):
        raise ReportedError(read_error(found))
    return found


def _in_words(payload: bytes) -> ErrorReport:
    """Read a payload that is no JSON: a sentence if it looks like one, else part of a chunk."""
    words = payload.decode(errors="replace").strip()
    sentence = "" if words[:1] in {"{", "["} else words
    return ErrorReport(0, sentence or "a chunk that cannot be read", words.lower())
