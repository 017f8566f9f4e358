"""The failures of a model call: their codes, their messages, and which may be retried.

Pure. No message holds a key, a header, a URL's query or the endpoint's own text, except for an
excerpt without secrets when the endpoint refuses a request.

Not here: the retries (`completions`).
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
import orjson

from diptych.errors import ModelCode, ModelError

MAX_EXCERPT_CHARS = 200
_AUTH_STATUSES = frozenset({401, 403})
_OVERLOADED_STATUSES = frozenset({429, 503, 529})
_RETRYABLE_STATUSES = frozenset({500, 502, 504})
_SECRET_LIKE = re.compile(
    r"\b(?:sk|pk|rk|gsk|key|xai)[-_][\w*.-]{4,}|\bAIza[\w-]{8,}|\bBearer\s+\S+", re.IGNORECASE
)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY_IN_URL = re.compile(r"(://[^\s?]*)\?\S*")


class AttemptFailure(ModelError):
    """A `ModelError` of one attempt.

    `may_retry` says that another attempt may succeed and cannot do harm; `retry_after` is the
    Retry-After of the response in seconds, `request_id` the endpoint's id of the request.
    """

    def __init__(self, code: ModelCode, message: str, *, may_retry: bool = False) -> None:
        super().__init__(code, message)
        self.may_retry = may_retry
        self.retry_after: float | None = None
        self.request_id: str | None = None


def malformed_reply(what: str) -> AttemptFailure:
    """A reply that does not have the API's form; `what` was sent instead."""
    return AttemptFailure(
        "model_garbage",
        f"The model endpoint sent {what}. Check that it is an OpenAI-compatible API.",
    )


def incomplete_reply() -> AttemptFailure:
    """A reply that broke off before its end."""
    message = "The model's reply broke off before its end. Try again."
    return AttemptFailure("model_cut", message, may_retry=True)


def first_byte_timeout() -> AttemptFailure:
    """A reply that did not begin in time."""
    message = (
        "The model did not begin its reply in time. Try again, or raise the model's "
        "timeouts.firstByte."
    )
    return AttemptFailure("model_timeout", message, may_retry=True)


def idle_timeout(seconds: float) -> AttemptFailure:
    """A reply that stopped for too long."""
    message = (
        f"The model sent nothing for {seconds:g} s in the middle of its reply. Try again, or raise "
        "the model's timeouts.idle."
    )
    return AttemptFailure("model_timeout", message, may_retry=True)


def total_timeout() -> AttemptFailure:
    """A call that took too long as a whole, its retries included."""
    message = (
        "The model did not end its reply in time. Ask for less, or raise the model's "
        "timeouts.total."
    )
    return AttemptFailure("model_timeout", message)


def connection_failure(error: aiohttp.ClientError, where: str) -> AttemptFailure:
    """A request without a response; `where` is the endpoint's scheme, host and port."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            # Not tried again: the time to connect is used up (faults.md M3: an error in 5 s).
            return _unreachable(where, "connecting takes too long", code="model_timeout")
        case aiohttp.ClientSSLError():
            return _unreachable(where, "its TLS certificate or handshake is not accepted")
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            return _unreachable(where, "the proxy does not let the request through")
        case aiohttp.ClientResponseError():
            return malformed_reply("something that is not HTTP")
        case aiohttp.ClientConnectorDNSError():
            why = "its host name is not known"
        case aiohttp.ClientConnectorError():
            why = "no connection could be made"
        case _:
            why = "it closed the connection without a response"
    return _unreachable(where, why, may_retry=True)


def status_failure(
    status: int, headers: Mapping[str, str], body: bytes, key: str | None
) -> AttemptFailure:
    """A response that is not a success; `key` is removed from the excerpt of its body."""
    failure = _for_status(status, body, key)
    failure.request_id = headers.get("x-request-id")
    if failure.may_retry:
        failure.retry_after = parse_retry_after(headers.get("retry-after"), datetime.now(UTC))
    return failure


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Read a Retry-After header, seconds or an HTTP date (RFC 9110, 10.2.3), as seconds from now.

    None if it is absent or not valid.
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


def excerpt(text: str, key: str | None) -> str:
    """Give an endpoint's own text as one short line without secrets, which anyone may read."""
    if key:
        text = text.replace(key, "…")
    text = _USER_IN_URL.sub("", text)
    text = _QUERY_IN_URL.sub(r"\1", text)
    text = _SECRET_LIKE.sub("…", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_EXCERPT_CHARS else text[: MAX_EXCERPT_CHARS - 1] + "…"


def _unreachable(
    where: str, why: str, *, code: ModelCode = "model_unreachable", may_retry: bool = False
) -> AttemptFailure:
    message = (
        f"The model endpoint {where} cannot be reached: {why}. "
        "Check the model's endpoint, and that the network lets this agent through."
    )
    return AttemptFailure(code, message, may_retry=may_retry)


def _for_status(status: int, body: bytes, key: str | None) -> AttemptFailure:
    if status in _AUTH_STATUSES:
        return AttemptFailure(
            "model_unauthorized",
            f"The model endpoint does not accept the API key (HTTP {status}). "
            "Check the model's apiKey, and what it may use.",
        )
    if status in _OVERLOADED_STATUSES:
        return AttemptFailure(
            "model_overloaded",
            f"The model endpoint has too much to do (HTTP {status}). Try again later.",
            may_retry=True,
        )
    match status // 100:
        case 5:
            return AttemptFailure(
                "model_failed",
                f"The model endpoint failed (HTTP {status}). Try again later, or look at its log.",
                may_retry=status in _RETRYABLE_STATUSES,
            )
        case 4:
            return _refused(status, excerpt(_error_message(body), key))
        case _:
            return _refused(
                status, "redirects are not followed. Set the model's endpoint to its final address."
            )


def _refused(status: int, reason: str) -> AttemptFailure:
    reason = reason or "check the model's name, endpoint and parameters."
    return AttemptFailure(
        "model_refused", f"The model endpoint refused the request (HTTP {status}): {reason}"
    )


def _error_message(body: bytes) -> str:
    """Find the message in an error body, in any of the forms that servers use; "" if none."""
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
