"""Everything that can go wrong, in one tree.

    DiptychError
    ├── ConfigError             the configuration is wrong; the process exits with 2
    ├── LoopError               the loop was used wrongly: our bug, it must crash loudly
    ├── RequestError            a caller asked for what cannot be
    │   ├── InvalidRequest      …because of what it sent
    │   │   ├── OnceDiffers     …under a key that stands for another request
    │   │   └── SessionBusy     …while a run of the session is not finished
    │   ├── RunOver             …of a run that has ended
    │   ├── UnknownRun          …of a run that never was
    │   ├── LostRun             …of a run that was, and whose record is gone
    │   └── Overloaded          …of a pod that has enough to do, or is leaving
    │       └── HeardEnough     …of a run that has been sent enough
    └── PortError               something outside failed; the cause stays in `__cause__`
        ├── ModelError
        ├── ToolError
        ├── DelegationError
        └── StoreError
            ├── StoreFull
            ├── LostBlob        …what many runs share is gone
            ├── StaleOwner      …another process has taken the run over
            └── LostTail        …its newest records are gone

Messages are read by strangers: they name what to do, and never hold a key, a header or a stack.
HTTP statuses are not chosen here (`http.errors` does), nor what the model is told (`prompt` does).
"""

from typing import Literal


class DiptychError(Exception):
    """The root of the tree; never raised itself."""


class ConfigError(DiptychError):
    """One or more things are wrong with the configuration; each line names place and fix."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LoopError(DiptychError):
    """An event reached a run that cannot take it."""


class RequestError(DiptychError):
    """A request that cannot be served; `code` is for programs, the message for people."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code


class InvalidRequest(RequestError):
    """What was sent does not have the right form."""


class IdempotencyMismatch(InvalidRequest):
    """A request came under the key of an earlier one, with another body."""

    code = "idempotency_mismatch"

    def __init__(self) -> None:
        message = "this Idempotency-Key came with another body before; use a new key"
        super().__init__(f"{message} for a new request", param="Idempotency-Key")


class SessionBusy(InvalidRequest):
    """A session is to be forgotten while a run of it is not finished."""

    code = "session_busy"

    def __init__(self) -> None:
        message = "a run of this session is not finished; cancel it or wait for its end"
        super().__init__(message, param="session_id")


class RunEnded(RequestError):
    """A message came for a run that takes none any more."""

    code = "run_over"

    def __init__(self) -> None:
        super().__init__("the run has ended; go on in its session, with a new run")


class RunNotFound(RequestError):
    """No run with this id was ever known here."""

    code = "run_not_found"

    def __init__(self, message: str = "there is no run with this id") -> None:
        super().__init__(message)


class RunLost(RequestError):
    """The run existed, and its record is gone: its process ended, or it was the oldest."""

    code = "run_lost"


class Overloaded(RequestError):
    """There is no room for another run now; `retry_after` is in seconds."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyMessages(Overloaded):
    """A message came for a run that takes no more of them."""

    def __init__(self) -> None:
        super().__init__("this run has been sent enough; send the message when it has ended")


class PortError(DiptychError):
    """Something outside did not do what it should."""


ModelCode = Literal[
    "model_unreachable",  # no connection
    "model_timeout",  # one of the four timeouts
    "model_unauthorized",  # 401, 403
    "model_overloaded",  # 429, 503, 529 after the retries
    "model_refused",  # another 4xx
    "model_failed",  # another 5xx
    "model_garbage",  # a reply that is not of the API's form
    "model_cut",  # a stream that ended before its end
    "mock_exhausted",  # DEBUG_MOCK_RESPONSES is used up
]


class ModelError(PortError):
    """The model gave no reply that can be used."""

    def __init__(self, code: ModelCode, message: str) -> None:
        super().__init__(message)
        self.code: ModelCode = code
        self.message = message


CallErrorKind = Literal[
    "failed",  # the tool or agent says so, or its answer makes no sense
    "timeout",
    "unavailable",  # its server or agent cannot be reached
    "refused",  # not sent: a call path that comes back, a reference that leads nowhere …
    "invalid_arguments",
    "skipped",  # not run, because another call failed or a message superseded it
    "interrupted",  # the run ended first
    "unknown",  # sent, and nobody knows what became of it
]


class CallError(PortError):
    """What `ToolError` and `DelegationError` share: the model is told `kind` and message."""

    def __init__(self, kind: CallErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: CallErrorKind = kind
        self.message = message


class ToolError(CallError):
    """A tool call that has no result."""


class DelegationError(CallError):
    """A delegation that has no answer."""


class StoreError(PortError):
    """The event log cannot be read or written."""


class StoreFull(StoreError):
    """The event log has no room for another record; what ends a run still fits."""


class BlobMissing(StoreError):
    """What a run was offered is not in the store any more: the run cannot be rebuilt."""


class LeaseLost(StoreError):
    """Another process owns the session now: what this one would write is refused."""


class LogTruncated(StoreError):
    """The store has lost the newest records of a run; `seq` is that of the newest it has."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"the record of the run ends at {seq}")
        self.seq = seq
