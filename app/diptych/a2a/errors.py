"""The errors of A2A for everything that can go wrong in a request."""

import logging
from types import TracebackType

from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from diptych.access.caller import Forbidden
from diptych.access.limits import LimitExceeded
from diptych.core.errors import (
    NotAnswered,
    Overloaded,
    RequestError,
    RunEnded,
    RunLost,
    RunNotFound,
    SessionBusy,
    StoreError,
    StoreFull,
)

_SAME_ID = "message.messageId came with other parts before; give each new message a new id"
_TASK_ENDED = "the task has ended; to go on, send the message with its contextId and no taskId"
_CONTEXT_BUSY = "another task of this context is not finished; cancel it or wait for its end"
_NOT_ANSWERED = (
    "the task's owner does not answer now, and may still take the message: send it again with the "
    "same messageId, or read the task first"
)
_STORE_FULL_SECONDS = 10
_NOT_ANSWERED_SECONDS = 2

_logger = logging.getLogger(__name__)


class ErrorTranslation:
    """Turns exceptions that leave its block into errors of A2A; cancellation passes through.

    The SDK sends the text of any other exception to the caller. Callers learn of our own bugs only
    that there was one. A `code` says what A2A has no error for; over REST it decides the status.
    """

    def __enter__(self) -> None: ...

    def __exit__(  # noqa: C901, PLR0912 - a table
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        match error:
            case None | A2AError():
                return
            case RunNotFound() | RunLost():
                raise TaskNotFoundError(error.message) from error
            case Forbidden():
                raise UnsupportedOperationError(str(error), {"code": "forbidden"}) from error
            case LimitExceeded():
                retry = _retry("too_many_runs", error.retry_after)
                raise InternalError(error.message, retry) from error
            case Overloaded():
                raise InternalError(str(error), _retry(error.code, error.retry_after)) from error
            case RunEnded():
                raise UnsupportedOperationError(_TASK_ENDED) from error
            case SessionBusy():
                raise UnsupportedOperationError(_CONTEXT_BUSY) from error
            case RequestError(code="idempotency_mismatch"):
                raise InvalidParamsError(_SAME_ID) from error
            case RequestError():
                raise InvalidParamsError(error.message) from error
            case StoreFull():
                retry = _retry("store_full", _STORE_FULL_SECONDS)
                raise InternalError("the store of tasks has no room now", retry) from error
            case NotAnswered():
                retry = _retry("not_answered", _NOT_ANSWERED_SECONDS)
                raise InternalError(_NOT_ANSWERED, retry) from error
            case StoreError():
                data = {"code": "store_away"}
                raise InternalError("the record of tasks cannot be reached now", data) from error
            case Exception():
                _logger.error("an A2A request failed unexpectedly", exc_info=error)
                raise InternalError("internal error") from error


def _retry(code: str, seconds: int) -> dict[str, str]:
    return {"code": code, "retryAfterSeconds": str(seconds)}
