"""Maps exceptions to A2A errors."""

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

_logger = logging.getLogger(__name__)


class ErrorTranslation:
    """Context manager that turns exceptions into A2A errors; cancellation passes through.

    The SDK would send the text of any other exception to the caller. Where A2A has no matching
    error, `code` names ours; over REST it decides the status.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, A2AError):
            raise _translated(error) from error


def _translated(error: Exception) -> A2AError:  # noqa: C901 - a table
    match error:
        case RunNotFound() | RunLost():
            return TaskNotFoundError(error.message)
        case Forbidden():
            return UnsupportedOperationError(str(error), {"code": "forbidden"})
        case Overloaded():
            return _retry(error.message, error.code, error.retry_after)
        case RunEnded():
            return UnsupportedOperationError(_TASK_ENDED)
        case SessionBusy():
            return UnsupportedOperationError(_CONTEXT_BUSY)
        case RequestError(code="idempotency_mismatch"):
            return InvalidParamsError(_SAME_ID)
        case RequestError(code="already_decided" | "already_answered" | "decision_refused"):
            return UnsupportedOperationError(error.message, {"code": error.code})
        case RequestError():
            return InvalidParamsError(error.message)
        case StoreFull():
            return _retry("the store of tasks has no room now", "store_full", 10)
        case NotAnswered():
            return _retry(_NOT_ANSWERED, "not_answered", 2)
        case StoreError():
            message = "the record of tasks cannot be reached now"
            return InternalError(message, {"code": "store_away"})
        case _:
            _logger.error("an A2A request failed unexpectedly", exc_info=error)
            return InternalError("internal error")


def _retry(message: str, code: str, seconds: int) -> InternalError:
    return InternalError(message, {"code": code, "retryAfterSeconds": str(seconds)})
