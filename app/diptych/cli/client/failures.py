"""What goes wrong when an agent is asked over HTTP, in words for a person.

Not here: the asking (`remote`), which failures are tried again (`patience`).
"""

import httpx
import orjson

from diptych.errors import DiptychError
from diptych.net.sse import SseTooLong

_NO_ROOM = {429, 503}
_PASSING = {500, 502, 504} | _NO_ROOM  # statuses of an agent or proxy that may do better soon


class RemoteError(DiptychError):
    """An agent gives no answer, or says no; the message is for a person."""


class Interrupted(RemoteError):
    """The same, and it may be otherwise in a moment.

    `had_effect` is false if what was asked was surely not done: nobody was there, or had room.
    """

    def __init__(self, message: str, *, had_effect: bool = True) -> None:
        super().__init__(message)
        self.had_effect = had_effect


def unreachable(name: str, error: Exception) -> RemoteError:
    """Say why there was no reply; `name` is what a person calls the agent."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return Interrupted(
                f"nothing listens at {name}; start an agent with `diptych serve agent.yaml`, "
                "or give the URL of one that runs",
                had_effect=False,
            )
        case httpx.TimeoutException():
            return Interrupted(f"{name} gave no answer in time")
        case httpx.InvalidURL():
            return RemoteError(f"{name} cannot be asked for that")
        case SseTooLong():
            return RemoteError(f"{name} sent an event that is too long to show")
        case _:
            return Interrupted(f"the connection to {name} broke")


def refused(status: int, body: bytes) -> RemoteError:
    """Repeat what the agent said was wrong, in either form that it speaks."""
    try:
        said = orjson.loads(body)
        message = said["error"]["message"] if "error" in said else said["detail"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = "what answers there is no Diptych agent"
    said_no = f"HTTP {status}: {message}"
    if status in _PASSING:
        return Interrupted(said_no, had_effect=status not in _NO_ROOM)
    return RemoteError(said_no)
