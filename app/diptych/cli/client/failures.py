"""The errors of a remote agent, each with a message for a person."""

import httpx
import orjson

from diptych.core.errors import DiptychError
from diptych.net.sse import SseTooLong

_UNAUTHORIZED = 401
_OVERLOADED = {429, 503}
_TRANSIENT = {500, 502, 504} | _OVERLOADED


class RemoteError(DiptychError):
    """The agent did not answer, or refused the request; the message is for a person.

    `code` is the agent's word for programs, "" if it has none.
    """

    code = ""


class TransientError(RemoteError):
    """A `RemoteError` that a retry may overcome.

    `may_have_started` is false if the agent surely did not take the request: no connection was
    made, or it had no room.
    """

    def __init__(self, message: str, *, may_have_started: bool = True) -> None:
        super().__init__(message)
        self.may_have_started = may_have_started


def connection_error(name: str, error: Exception) -> RemoteError:
    """Give the error for a request without a response; `name` is what a person calls the agent."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return TransientError(
                f"nothing listens at {name}; start an agent with `diptych serve agent.yaml`, "
                "or give the URL of one that runs",
                may_have_started=False,
            )
        case httpx.TimeoutException():
            return TransientError(f"{name} gave no answer in time")
        case httpx.InvalidURL():
            return RemoteError(f"{name} cannot be asked for that")
        case SseTooLong():
            return RemoteError(f"{name} sent an event that is too long to show")
        case _:
            return TransientError(f"the connection to {name} broke")


def status_error(status: int, body: bytes) -> RemoteError:
    """Give the error for a response that is no success; it repeats what the agent said."""
    code = ""
    try:
        content = orjson.loads(body)
        message = content["error"]["message"] if "error" in content else content["detail"]
        code = str(content.get("error", content).get("code") or "")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = "what answers there is no Diptych agent"
    if status == _UNAUTHORIZED:
        message += "; DIPTYCH_TOKEN holds the token or key that is sent"
    error = RemoteError(f"HTTP {status}: {message}")
    if status in _TRANSIENT:
        error = TransientError(str(error), may_have_started=status not in _OVERLOADED)
    error.code = code
    return error
