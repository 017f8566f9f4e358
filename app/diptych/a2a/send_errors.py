"""Classifies failed requests to other agents."""

import httpx
from a2a.client.errors import A2AClientError
from a2a.utils.errors import A2AError, InternalError

from diptych.core import prompt
from diptych.core.errors import CallErrorKind, DelegationError
from diptych.net.proxies import proxy_for, through

MAX_REASON_CHARS = 500

_NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,  # it opens no tunnel
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)
_NOT_TAKEN_STATUSES = frozenset({429, 503})  # the agent takes no task now
_BUSY_STATUSES = _NOT_TAKEN_STATUSES | {502}


def explain(error: Exception, agent: str, refusal: str) -> DelegationError:
    """Turn a failed request into an error for the model.

    `refusal` describes an error response: "did not take the task".
    """
    kind, reason = _kind_and_reason(error, agent, refusal)
    return unknown(reason) if kind == "unknown" else DelegationError(kind, reason)


def reason_of(error: Exception, agent: str) -> str:
    """Return why a request about a task failed."""
    return _kind_and_reason(error, agent, "answered with an error")[1]


def unknown(reason: str) -> DelegationError:
    """Return the error for a task that was sent and may have taken effect (loop.md §5)."""
    return DelegationError("unknown", prompt.outcome_unknown(reason))


def is_unreached(error: BaseException | None) -> bool:
    """Whether the agent was unreachable, or the connection was lost before a response."""
    return isinstance(error, A2AClientError) and isinstance(error.__cause__, httpx.TransportError)


def is_lost(error: Exception) -> bool:
    """Whether the connection was lost after the request may have been sent."""
    return is_unreached(error) and not isinstance(error.__cause__, _NOT_SENT_ERRORS)


def is_busy(error: Exception) -> bool:
    """Whether the agent is temporarily overloaded or unavailable."""
    match error:
        case A2AClientError(__cause__=httpx.HTTPStatusError(response=response)):
            return response.status_code in _BUSY_STATUSES
        case _:
            return isinstance(error, InternalError) and bool(error.data)


def _kind_and_reason(error: Exception, agent: str, refusal: str) -> tuple[CallErrorKind, str]:
    match error:
        case _ if is_lost(error):
            reason = f"agent {agent} was sent the task, and the connection was lost"
            return "unknown", _through(error, reason)
        case _ if is_unreached(error):
            return "unavailable", _through(error, f"agent {agent} cannot be reached")
        case A2AClientError(__cause__=httpx.HTTPStatusError(response=response)):
            return _of_status(agent, response.status_code, refusal)
        case InternalError(data={"retryAfterSeconds": _}):
            return "unavailable", f"agent {agent} has too much to do"
        case A2AError() if not isinstance(error, A2AClientError):
            return "failed", f"agent {agent} {refusal}: {error.message[:MAX_REASON_CHARS]}"
        case _:
            return "unknown", f"the answer of agent {agent} is not valid A2A"


def _through(error: Exception, reason: str) -> str:
    """Name the proxy that a request went through, if it did."""
    request: httpx.Request | None = getattr(error.__cause__, "_request", None)
    return through(proxy_for(str(request.url)) if request else None, reason)


def _of_status(agent: str, status: int, refusal: str) -> tuple[CallErrorKind, str]:
    if status in _NOT_TAKEN_STATUSES:
        return "unavailable", f"agent {agent} takes no tasks now (HTTP {status})"
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return "failed", f"agent {agent} refuses our credentials (HTTP {status})"
    may_have_taken = status >= httpx.codes.INTERNAL_SERVER_ERROR
    is_unknown = may_have_taken or status == httpx.codes.REQUEST_TIMEOUT
    return "unknown" if is_unknown else "failed", f"agent {agent} {refusal} (HTTP {status})"
