"""Failures of a model call: their codes and messages, and which may be retried.

Pure. No message contains a key, a header, a URL's query or the endpoint's own text, except for a
redacted excerpt where the endpoint explains what is wrong.
"""

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
from yarl import URL

from diptych.core.errors import ModelCode, ModelError
from diptych.manifest.providers import PROVIDERS
from diptych.models.error_report import ErrorReport
from diptych.models.refusals import ContextLimit, context_limit, is_malformed_call
from diptych.net.name_server import unresolved
from diptych.net.outgoing import AddressRefused
from diptych.net.proxies import shown

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
MAX_QUOTATION_CHARS = 200
_RATE_LIMITED = 429
_HOPELESS_STATUSES = frozenset({501, 505})  # not implemented: a retry reaches the same server
_SERVER_ERRORS = range(500, 600)
_RETRYABLE_REFUSALS = frozenset({408, 409, 425})
_QUOTA_CODES = frozenset(
    {
        *("insufficient_quota", "billing_hard_limit_reached"),  # OpenAI, Azure
        *("billing_not_active", "exceeded_current_quota_error"),  # OpenAI, Moonshot
    }
)
_QUOTA_ADVICE = "See the provider's plan and billing."
_CHECK = "check the model's name, endpoint and parameters."
_REDIRECTED = "redirects are not followed. Set the model's endpoint to its final URL."
_OF_THE_REQUEST = frozenset({"context_too_long", "tools_refused", "malformed_call"})
_SECRET_LIKE = re.compile(
    r"\b(?:sk|pk|rk|gsk|key|xai)[-_][\w*.-]{4,}|\bAIza[\w-]{8,}|\bBearer\s+\S+", re.IGNORECASE
)
_IN_PLACE_OF_V1 = re.compile(r"v?[\dl](\.\d)?|v|chat|completions|models", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_QUERY_IN_URL = re.compile(r"(://[^\s?]*)\?\S*")


class ReportedError(Exception):
    """An error inside a successful response."""

    def __init__(self, report: ErrorReport) -> None:
        super().__init__()
        self.report = report


class AttemptFailure(ModelError):
    """A `ModelError` of one attempt.

    `may_retry`: another attempt may succeed, and is safe. `retry_after` is the response's
    Retry-After in seconds. `report` is the endpoint's own account; `said` quotes it, redacted, and
    is only for the log.
    """

    def __init__(
        self,
        code: ModelCode,
        message: str,
        *,
        may_retry: bool = False,
        report: ErrorReport | None = None,
        said: str = "",
    ) -> None:
        super().__init__(code, message)
        self.may_retry = may_retry
        self.report = report
        self.said = said
        self.retry_after: float | None = None

    @property
    def status(self) -> int:
        """The endpoint's HTTP status; 0 if there is none."""
        return self.report.status if self.report is not None else 0

    @property
    def is_outage(self) -> bool:
        """Whether the endpoint itself is unhealthy, not just the request, key or rate wrong."""
        if self.status == _RATE_LIMITED:
            return False
        return self.may_retry or self.code in {"model_unreachable", "model_timeout"}

    @property
    def may_fall_back(self) -> bool:
        """Whether another endpoint may succeed; False if the request itself is wrong."""
        if self.code == "model_refused":
            return self.report is not None and self.report.status not in {400, 413, 422}
        return self.code not in _OF_THE_REQUEST

    def name_proxy(self, proxy: str | None) -> None:
        """Mention the proxy in the message, since it may be at fault."""
        if proxy and self.code not in _OF_THE_REQUEST and shown(proxy) not in self.message:
            self.message += f" The request went through the proxy {shown(proxy)}."


class SecretMissing(AttemptFailure):
    """The key or a header's value is missing, so no request was sent; `what` names it."""

    def __init__(self, what: str) -> None:
        super().__init__(
            "model_unauthorized", f"The model's {what} is missing. Provide its secret."
        )


def malformed_reply(what: str) -> AttemptFailure:
    """Return the failure for a reply that does not follow the API; `what` was sent instead."""
    return AttemptFailure(
        "model_garbage",
        f"The model endpoint sent {what}. Check that it is an OpenAI-compatible API.",
    )


def incomplete_reply() -> AttemptFailure:
    """Return the failure for a truncated reply."""
    message = "The model's reply was cut off. Try again."
    return AttemptFailure("model_cut", message, may_retry=True)


def first_byte_timeout(seconds: float) -> AttemptFailure:
    """Return the failure for a reply that did not start in time.

    It is not retried: a slow server would start over, just as slowly.
    """
    message = (
        f"The model did not start its reply within {seconds:.3g} s. If it needs longer to process "
        "the prompt, raise spec.model.timeouts.firstByte."
    )
    return AttemptFailure("model_timeout", message)


def idle_timeout(seconds: float) -> AttemptFailure:
    """Return the failure for a reply that stalled."""
    message = (
        f"The model sent nothing for {seconds:g} s in the middle of its reply. Try again, or raise "
        "spec.model.timeouts.idle."
    )
    return AttemptFailure("model_timeout", message, may_retry=True)


def total_timeout(seconds: float) -> AttemptFailure:
    """Return the failure for a call that took too long in total, including retries."""
    message = (
        f"The model did not finish its reply within {seconds:.3g} s. Ask for less, or raise "
        "spec.model.timeouts.total."
    )
    return AttemptFailure("model_timeout", message)


def connection_failure(
    error: aiohttp.ClientError, where: str, proxy: str | None = None
) -> AttemptFailure:
    """Return the failure for a request without a response; `where` is the endpoint's origin."""
    if proxy and (why := _proxy_failure(error)):
        return AttemptFailure(
            "model_unreachable",
            f"The model endpoint {where} cannot be reached: the proxy {shown(proxy)} {why}. "
            "Check the proxy, and that the network lets this agent reach it.",
        )
    match error:
        case aiohttp.ClientConnectorError(os_error=AddressRefused() as refused):
            return _unreachable(where, str(refused))
        case aiohttp.ConnectionTimeoutError():
            # Not retried: the time to connect is used up (faults.md M3: an error in 5 s).
            why = "connecting takes longer than spec.model.timeouts.connect"
            return _unreachable(where, why, code="model_timeout")
        case aiohttp.ClientSSLError():
            return _unreachable(where, "its TLS certificate or handshake is invalid")
        case aiohttp.ClientResponseError():
            return malformed_reply("something that is not HTTP")
        case aiohttp.ClientConnectorDNSError():
            why = unresolved(error.os_error)
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            return _unreachable(where, "nothing listens there", may_retry=True)
        case aiohttp.ClientConnectorError():
            why = "no connection could be made"
        case _:
            why = "it closed the connection without a response"
    return _unreachable(where, why, may_retry=True)


def _proxy_failure(error: aiohttp.ClientError) -> str | None:
    """Return the proxy's problem; None if the proxy is not at fault."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "does not respond in time"
        case aiohttp.ClientConnectorDNSError():
            return "has an unknown host name"
        case aiohttp.ClientProxyConnectionError():
            return "accepts no connections"
        case aiohttp.ClientHttpProxyError():
            return f"rejects the request (HTTP {error.status})"
    return None


def status_failure(
    report: ErrorReport, headers: Mapping[str, str], secrets: Collection[str], url: URL
) -> AttemptFailure:
    """Return the failure for an error response from `url`; `secrets` are redacted in quotes."""
    if is_malformed_call(report):
        return _malformed_call(report)
    failure = _for_status(report, quotation(report.sentence, secrets), url)
    if failure.may_retry:
        failure.retry_after = parse_retry_after(headers.get("retry-after"), datetime.now(UTC))
    return failure


def failure_in_success(report: ErrorReport, secrets: Collection[str]) -> AttemptFailure:
    """Return the failure for an error inside a successful response."""
    if is_malformed_call(report):
        return _malformed_call(report)
    said = quotation(report.sentence, secrets)
    limit = context_limit(report)
    if limit is not None:
        return _too_long(report, limit, said)
    message = "The model endpoint reported an error instead of a reply. "
    return _reported(report, "model_failed", f"{message}Try again, or look at its log.", said)


def tools_refused(failure: AttemptFailure) -> AttemptFailure:
    """Return a failure that turned out to be a refusal of the `tools` field."""
    return AttemptFailure(
        "tools_refused",
        f"The model endpoint does not support tools: {failure.message} "
        "Set the model's actionFormat to json, or to auto.",
        report=failure.report,
    )


def tool_refused(failure: AttemptFailure, name: str) -> AttemptFailure:
    """Return a failure that turned out to be a refusal of a tool; `name` is "" if unknown."""
    what = f"the tool {name!r}" if name else "one of the tools, or their number"
    remedy = "Change its input schema, leave it out" if name else "Leave some out"
    return AttemptFailure(
        "tools_refused",
        f"{failure.message.rstrip('.')}. It does not accept {what}. {remedy} (tools[].allow), or "
        "set the model's actionFormat to json, or to auto, which falls back to json.",
        report=failure.report,
    )


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Parse a Retry-After header, seconds or an HTTP date (RFC 9110, 10.2.3), into seconds.

    Returns None if it is absent or invalid.
    """
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value.strip(), re.ASCII):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # OverflowError: a year of twenty digits
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def quotation(text: str, secrets: Collection[str]) -> str:
    """Return an endpoint's own text as one short line, with secrets redacted."""
    for secret in secrets:
        text = text.replace(secret, "…")
    text = _USER_IN_URL.sub("", text)
    text = _QUERY_IN_URL.sub(r"\1", text)
    text = _SECRET_LIKE.sub("…", text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= MAX_QUOTATION_CHARS else text[: MAX_QUOTATION_CHARS - 1] + "…"


def _local_server(where: str) -> str:
    """Return which provider usually listens at this address of this machine."""
    port = URL(where).port
    local = ((name, URL(p.endpoint)) for name, p in PROVIDERS.items() if not p.secret)
    return next((name for name, url in local if url.port == port), "the model's server")


def _unreachable(
    where: str, why: str, *, code: ModelCode = "model_unreachable", may_retry: bool = False
) -> AttemptFailure:
    if URL(where).host in _LOOPBACK:
        field = "spec.model.endpoint, in Python ModelAPI(endpoint=…, name=…)"
        check = f"Start {_local_server(where)}, or change the model's endpoint: {field}."
    else:
        check = "Check the model's endpoint, and that the network lets this agent through."
    message = f"The model endpoint {where} cannot be reached: {why}. {check}"
    return AttemptFailure(code, message, may_retry=may_retry)


def _for_status(report: ErrorReport, said: str, url: URL) -> AttemptFailure:
    status = report.status
    where, saying = f"The model endpoint {url.origin()}", f"(HTTP {status}){_quoted(said)}."
    match status:
        case 401 | 403:
            message = (
                f"{where} does not accept the API key {saying} "
                "Check the model's apiKey and headers, and the key's permissions."
            )
            return _reported(report, "model_unauthorized", message)
        case _ if (limit := context_limit(report)) is not None:
            return _too_long(report, limit, said)
        case 429 if not _may_retry(report):
            message = f"{where} says that the quota is exhausted {saying} "
            return _reported(report, "model_overloaded", message + _QUOTA_ADVICE)
        case 429 | 503 | 529:
            message = f"{where} is overloaded {saying} Try again later."
            return _reported(report, "model_overloaded", message)
        case 404 | 405:
            return _not_found(report, said, url)
        case _ if status in _SERVER_ERRORS:
            message = (
                f"The model endpoint failed (HTTP {status}). Try again later, or look at its log."
            )
            return _reported(report, "model_failed", message, said)
        case _ if status >= 400:  # noqa: PLR2004
            return _refused(report, said)
    return _refused(report, _REDIRECTED)


def _reported(report: ErrorReport, code: ModelCode, message: str, said: str = "") -> AttemptFailure:
    return AttemptFailure(code, message, may_retry=_may_retry(report), report=report, said=said)


def _not_found(report: ErrorReport, said: str, url: URL) -> AttemptFailure:
    """Return the failure for a model or path that does not exist."""
    reason = said or _CHECK
    asked = url.with_user(None).with_query(None)
    reason = f"{reason.rstrip('.')}. The URL was {asked}."
    if "model" not in report.text and (likely := _likely_endpoint(asked)):
        reason += f" Did you mean {likely} as the model's endpoint?"
    return _refused(report, reason)


def _likely_endpoint(asked: URL) -> URL | None:
    """Suggest an endpoint that ends in `/v1`; None if the requested URL already has it."""
    parts = asked.path.removesuffix("/chat/completions").strip("/").split("/")
    if "v1" in parts[:-1]:
        parts = parts[: parts.index("v1")]
    elif any(part.startswith("v1") for part in parts):  # Gemini has a v1beta
        return None
    elif _IN_PLACE_OF_V1.fullmatch(parts[-1]):
        parts.pop()
    return asked.with_path("/".join(["", *filter(None, parts), "v1"]))


def _may_retry(report: ErrorReport) -> bool:
    status = report.status
    if status == _RATE_LIMITED:
        return not report.codes & _QUOTA_CODES  # waiting does not refill an account
    is_server_error = status in _SERVER_ERRORS and status not in _HOPELESS_STATUSES
    return is_server_error or status in _RETRYABLE_REFUSALS


def _refused(report: ErrorReport, reason: str) -> AttemptFailure:
    why = reason or _CHECK
    message = f"The model endpoint refused the request (HTTP {report.status}): {why}"
    return _reported(report, "model_refused", message)


def _malformed_call(report: ErrorReport) -> AttemptFailure:
    failure = AttemptFailure(
        "malformed_call",
        "The model wrote a tool call that its server cannot parse.",
        report=report,
    )
    failure.written = report.written
    return failure


def _too_long(report: ErrorReport, limit: ContextLimit, said: str) -> AttemptFailure:
    failure = AttemptFailure(
        "context_too_long",
        f"The conversation does not fit the model's context{_quoted(said)}. "
        "Start a new session, or use a model with a larger context.",
        report=report,
    )
    failure.max_tokens, failure.prompt_tokens = limit.max_tokens, limit.prompt_tokens
    return failure


def _quoted(said: str) -> str:
    return f": {said.rstrip('.')}" if said else ""
