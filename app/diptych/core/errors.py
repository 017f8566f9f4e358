"""Everything that can go wrong, in one tree.

    DiptychError
    ├── ConfigError                 the configuration is wrong; the process exits with 2
    ├── LoopError                   a bug of Diptych in the use of the loop: it must crash loudly
    ├── OutOfMemory                 a run has grown beyond what there is
    ├── RequestError                a request cannot be served
    │   ├── InvalidRequest          what was sent is wrong
    │   │   ├── IdempotencyMismatch its idempotency key stands for another request
    │   │   └── SessionBusy         a run of the session has not ended
    │   ├── RunEnded                the run has ended
    │   ├── ApprovalNotFound        no such call waited for a decision
    │   ├── AlreadyDecided          a call does not wait for a decision any more
    │   ├── NotResumable            the run cannot be taken up again
    │   ├── RunNotFound             the run never was
    │   ├── RunLost                 the run was, and its record is gone
    │   ├── TooManyMessages         the run takes no more messages
    │   └── Overloaded              there is no room now, or the process is leaving
    │       └── SubjectOverloaded   … for this subject
    └── PortError                   something outside failed; the cause stays in `__cause__`
        ├── ModelError
        ├── ToolError
        ├── DelegationError
        └── StoreError
            ├── StoreFull
            ├── NotAnswered         the owner of a run has not recorded something in time
            ├── BlobMissing         what many runs share is gone
            ├── LeaseLost           another process owns the session
            └── LogTruncated        the newest records of a run are gone

Messages are read by strangers: they say what to do, and never hold a key, a header or a stack.
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
    """An event or call that the run cannot take in its state."""


class OutOfMemory(DiptychError):
    """A run has grown beyond the memory that there is for all of them; it must end."""


class RequestError(DiptychError):
    """A request that cannot be served; `code` is for programs, the message for people."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code


class InvalidRequest(RequestError):
    """The request is malformed."""


class IdempotencyMismatch(InvalidRequest):
    """A request has the idempotency key of an earlier one, and another body."""

    code = "idempotency_mismatch"

    def __init__(self) -> None:
        message = "this Idempotency-Key came with another body before; use a new key"
        super().__init__(f"{message} for a new request", param="Idempotency-Key")


class SessionBusy(InvalidRequest):
    """A run of the session has not ended: it cannot be deleted, or takes no run (`reject`)."""

    code = "session_busy"

    def __init__(self) -> None:
        message = "a run of this session is not finished; cancel it or wait for its end"
        super().__init__(message, param="session_id")


class RunEnded(RequestError):
    """A message or decision was sent to a run that has ended."""

    code = "run_over"

    def __init__(self) -> None:
        super().__init__("the run has ended; go on in its session, with a new run")


class ApprovalNotFound(RequestError):
    """A decision is about a call that was never asked about."""

    code = "approval_not_found"

    def __init__(self) -> None:
        super().__init__("no call with this id waits for a decision in this run")


class AlreadyDecided(RequestError):
    """A decision on a call that was decided on; the message says what, and by whom."""

    code = "already_decided"


class DecisionRefused(RequestError):
    """An agent below refuses a decision that was passed on to it; the code says how."""

    code = "decision_refused"


class NotResumable(RequestError):
    """A run cannot be resumed: it did not fail, or its session has gone on."""

    code = "not_resumable"

    def __init__(
        self, message: str = "its session has gone on; send a message to the session"
    ) -> None:
        super().__init__(message)


class RunNotFound(RequestError):
    """No run with this id ever was."""

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


class SubjectOverloaded(Overloaded):
    """A subject holds as much as one may; others still have room."""

    code = "too_much_at_once"


class TooManyMessages(RequestError):
    """A message was sent to a run that has had its 100."""

    code = "too_many_messages"

    def __init__(self) -> None:
        super().__init__(
            "this run has had as many messages as it takes; when it has ended, go on in its "
            "session with a new run"
        )


class PortError(DiptychError):
    """Something outside failed."""


ModelCode = Literal[
    "model_unreachable",  # no connection
    "model_timeout",  # one of the four timeouts
    "model_unauthorized",  # 401, 403
    "model_overloaded",  # 429, 503, 529 after the retries
    "model_refused",  # another 4xx
    "context_too_long",  # the request does not fit the model's window
    "tools_refused",  # the endpoint does not take the `tools` field
    "malformed_call",  # the endpoint could not read a native call that the model wrote
    "model_failed",  # another 5xx, and every error inside a 200
    "model_garbage",  # a reply that is not of the API's form
    "model_cut",  # a stream that ended before its end
    "mock_exhausted",  # DEBUG_MOCK_RESPONSES is used up
]


class ModelError(PortError):
    """The model gave no reply that can be used.

    Of `context_too_long`, `max_tokens` is the model's window and `prompt_tokens` what the request
    has, both in tokens; None if the endpoint does not say. Of `malformed_call`, `written` is what
    the model wrote, "" if the endpoint does not say.
    """

    def __init__(
        self,
        code: ModelCode,
        message: str,
        *,
        max_tokens: int | None = None,
        prompt_tokens: int | None = None,
    ) -> None:
        super().__init__(message)
        self.written = ""
        self.code: ModelCode = code
        self.message = message
        self.max_tokens = max_tokens
        self.prompt_tokens = prompt_tokens


CallErrorKind = Literal[
    "failed",  # the tool or agent says so, or its answer makes no sense
    "timeout",
    "unavailable",  # its server or agent cannot be reached
    "refused",  # not sent: a call path that comes back, a reference that leads nowhere …
    "invalid_arguments",
    "denied",  # by the policy, or by a person who was asked
    "repeated",  # not run, because the steps before made the same call (loop.md §8)
    "skipped",  # not run, because another call failed or a message superseded it
    "interrupted",  # the run ended first
    "unknown",  # sent, and nobody knows what became of it
]


class CallError(PortError):
    """The common part of `ToolError` and `DelegationError`: the model reads kind and message."""

    def __init__(self, kind: CallErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: CallErrorKind = kind
        self.message = message


class ToolError(CallError):
    """A tool call that has no result."""


class DelegationError(CallError):
    """A delegation that has no answer; `child` is a `loop.messages.ChildRun`, if it was sent."""

    child: object = None


class StoreError(PortError):
    """The event log cannot be read or written."""


class StoreFull(StoreError):
    """The store has no room for another record; a terminal event still fits."""


class NotAnswered(StoreError):
    """Whose turn it is to record something has not done it in time; callers see the message."""


class BlobMissing(StoreError):
    """A run's catalog is not in the store any more, so the run cannot be rebuilt."""


class LeaseLost(StoreError):
    """Another process owns the session now: this one's writes are refused."""


class LogTruncated(StoreError):
    """The store has lost the newest records of a run; `seq` is that of the newest it has."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"the record of the run ends at {seq}")
        self.seq = seq
