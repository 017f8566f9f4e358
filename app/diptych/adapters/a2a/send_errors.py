"""What it means that a request to another agent failed."""

import httpx
from a2a.client.errors import A2AClientError
from a2a.utils.errors import A2AError, InternalError

from diptych.errors import DelegationError
from diptych.net.proxies import proxy_for, through

MAX_REASON_CHARS = 500

NOT_SENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.LocalProtocolError,
    httpx.UnsupportedProtocol,
)
BUSY_STATUSES = frozenset({429, 502, 503})


def explain(error: Exception, agent: str, refusal: str) -> DelegationError:
    """Say what a request that failed means for the model.

    `refusal` says what an agent did that answered with an error: "did not take the task".
    """
    match error:
        case _ if is_not_sent(error):
            return DelegationError(
                "unavailable", _through(error, f"agent {agent} cannot be reached")
            )
        case _ if is_lost(error):
            reason = f"agent {agent} was sent the task, and the connection was lost"
            return DelegationError("unknown", _through(error, reason))
        case A2AClientError(__cause__=httpx.HTTPStatusError(response=response)):
            return _http_error(agent, response.status_code, refusal)
        case InternalError(data={"retryAfterSeconds": _}):
            return DelegationError("unavailable", f"agent {agent} has too much to do")
        case A2AError() if not isinstance(error, A2AClientError):
            reason = error.message[:MAX_REASON_CHARS]
            return DelegationError("failed", f"agent {agent} {refusal}: {reason}")
        case _:
            return DelegationError("failed", f"the answer of agent {agent} is not valid A2A")


def is_not_sent(error: Exception) -> bool:
    """Say whether a request never reached the agent."""
    return isinstance(error, A2AClientError) and isinstance(error.__cause__, NOT_SENT_ERRORS)


def is_lost(error: Exception) -> bool:
    """Say whether the connection was lost after the request may have been sent."""
    return (
        isinstance(error, A2AClientError)
        and isinstance(error.__cause__, httpx.TransportError)
        and not isinstance(error.__cause__, NOT_SENT_ERRORS)
    )


def is_unreached(error: BaseException | None) -> bool:
    """Say whether an agent could not be reached, or was lost before it had answered."""
    return isinstance(error, Exception) and (is_not_sent(error) or is_lost(error))


def is_busy(error: Exception) -> bool:
    """Say whether an agent takes no requests for a moment."""
    match error:
        case A2AClientError(__cause__=httpx.HTTPStatusError(response=response)):
            return response.status_code in BUSY_STATUSES
        case _:
            return isinstance(error, InternalError) and bool(error.data)


def _through(error: Exception, reason: str) -> str:
    """Name the proxy that a request went through, if it did."""
    request: httpx.Request | None = getattr(error.__cause__, "_request", None)
    return through(proxy_for(str(request.url)) if request else None, reason)


def _http_error(agent: str, status: int, refusal: str) -> DelegationError:
    if status in BUSY_STATUSES:
        return DelegationError("unavailable", f"agent {agent} takes no tasks now (HTTP {status})")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return DelegationError("failed", f"agent {agent} refuses our credentials (HTTP {status})")
    return DelegationError("failed", f"agent {agent} {refusal} (HTTP {status})")
