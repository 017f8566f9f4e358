"""What can go wrong with a model call, in words, and whether asking again may help.

Pure, and not here: waiting, asking again (`completions`). No message holds a key, a header,
a URL's query, or the endpoint's own words, except a cleaned excerpt when it refuses a request.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
import orjson

from diptych.errors import ModelCode, ModelError

EXCERPT_LENGTH = 200  # characters
_UNAUTHORIZED = frozenset({401, 403})
_OVERLOADED = frozenset({429, 503, 529})
_FAILED_FOR_NOW = frozenset({500, 502, 504})
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|key|xai)[-_][\w*.-]{4,}|\bAIza[\w-]{8,}|\bBearer\s+\S+", re.IGNORECASE
)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY_IN_URL = re.compile(r"(://[^\s?]*)\?\S*")


class Failure(ModelError):
    """A `ModelError` of one try.

    `again` says that another try may succeed and cannot do harm; `after` is how many seconds the
    endpoint asked to be left alone, `request_id` is what it called the request.
    """

    def __init__(self, code: ModelCode, message: str, *, again: bool = False) -> None:
        super().__init__(code, message)
        self.again = again
        self.after: float | None = None
        self.request_id: str | None = None


def garbage(what: str) -> Failure:
    """Say that a reply is not of the API's form."""
    return Failure(
        "model_garbage",
        f"The model endpoint sent {what}. Check that it is an OpenAI-compatible API.",
    )


def cut() -> Failure:
    """Say that a reply ended before its end."""
    message = "The model's reply broke off before its end. Try again."
    return Failure("model_cut", message, again=True)


def first_byte_timeout() -> Failure:
    """Say that a reply did not begin in time."""
    message = (
        "The model did not begin its reply in time. Try again, or raise the model's "
        "timeouts.firstByte."
    )
    return Failure("model_timeout", message, again=True)


def idle_timeout(seconds: float) -> Failure:
    """Say that a reply stood still."""
    message = (
        f"The model sent nothing for {seconds:g} s in the middle of its reply. Try again, or raise "
        "the model's timeouts.idle."
    )
    return Failure("model_timeout", message, again=True)


def total_timeout() -> Failure:
    """Say that a call as a whole took too long, its retries included."""
    message = (
        "The model did not end its reply in time. Ask for less, or raise the model's "
        "timeouts.total."
    )
    return Failure("model_timeout", message)


def refused_connection(error: aiohttp.ClientError, where: str) -> Failure:
    """Say why a request got no response; `where` is the endpoint's scheme, host and port."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            # Not tried again: the time to connect is used up (faults.md M3: an error in 5 s).
            return _unreachable(where, "connecting takes too long", code="model_timeout")
        case aiohttp.ClientSSLError():
            return _unreachable(where, "its TLS certificate or handshake is not accepted")
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return _unreachable(where, "the proxy does not let the request through")
        case aiohttp.ClientResponseError():
            return garbage("something that is not HTTP")
        case aiohttp.ClientConnectorDNSError():
            why = "its host name is not known"
        case aiohttp.ClientConnectorError():
            why = "no connection could be made"
        case _:
            why = "it closed the connection without a response"
    return _unreachable(where, why, again=True)


def refused_request(
    status: int, headers: Mapping[str, str], body: bytes, key: str | None
) -> Failure:
    """Say what a response that is not a success means; `key` is cleaned from the excerpt."""
    failure = _for_status(status, body, key)
    failure.request_id = headers.get("x-request-id")
    if failure.again:
        failure.after = retry_after(headers.get("retry-after"), datetime.now(UTC))
    return failure


def retry_after(value: str | None, now: datetime) -> float | None:
    """Read a Retry-After header, seconds or an HTTP date (RFC 9110, 10.2.3), as seconds from now.

    None if it is absent or makes no sense.
    """
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value.strip(), re.ASCII):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def cleaned(text: str, key: str | None) -> str:
    """Make an endpoint's own words fit for strangers: one line, short, without secrets."""
    if key:
        text = text.replace(key, "…")
    text = _USER_IN_URL.sub("", text)
    text = _QUERY_IN_URL.sub(r"\1", text)
    text = _LOOKS_SECRET.sub("…", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= EXCERPT_LENGTH else text[: EXCERPT_LENGTH - 1] + "…"


def _unreachable(
    where: str, why: str, *, code: ModelCode = "model_unreachable", again: bool = False
) -> Failure:
    message = (
        f"The model endpoint {where} cannot be reached: {why}. "
        "Check the model's endpoint, and that the network lets this agent through."
    )
    return Failure(code, message, again=again)


def _for_status(status: int, body: bytes, key: str | None) -> Failure:
    if status in _UNAUTHORIZED:
        return Failure(
            "model_unauthorized",
            f"The model endpoint does not accept the API key (HTTP {status}). "
            "Check the model's apiKey, and what it may use.",
        )
    if status in _OVERLOADED:
        return Failure(
            "model_overloaded",
            f"The model endpoint has too much to do (HTTP {status}). Try again later.",
            again=True,
        )
    match status // 100:
        case 5:
            return Failure(
                "model_failed",
                f"The model endpoint failed (HTTP {status}). Try again later, or look at its log.",
                again=status in _FAILED_FOR_NOW,
            )
        case 4:
            return _refusal(status, cleaned(_own_words(body), key))
        case _:
            return _refusal(
                status, "redirects are not followed. Set the model's endpoint to its final address."
            )


def _refusal(status: int, words: str) -> Failure:
    words = words or "check the model's name, endpoint and parameters."
    return Failure(
        "model_refused", f"The model endpoint refused the request (HTTP {status}): {words}"
    )


def _own_words(body: bytes) -> str:
    """Find the message in an error body, in any of the forms that servers use."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(found, list) and found:
        found = found[0]  # Gemini
    for name in ("error", "message", "detail"):
        if isinstance(found, dict):
            found = found.get(name, found)
    return found if isinstance(found, str) else ""
