"""All exceptions, in one tree.

    DiptychError
    ├── ConfigError                 invalid configuration; the process exits with 2
    ├── LoopError                   an event that the run cannot take: a bug in Diptych
    ├── OutOfMemory                 a run exceeds the available memory
    ├── RequestError                a request cannot be served
    │   ├── InvalidRequest          the request is malformed
    │   │   ├── IdempotencyMismatch its idempotency key was used for another request
    │   │   └── SessionBusy         the session has an unfinished run
    │   ├── RunEnded                the run has ended
    │   ├── ApprovalNotFound        no such call needed approval
    │   ├── AlreadyDecided          the approval has been decided
    │   ├── InputNotFound           no such call asked for input
    │   ├── AlreadyAnswered         the question has been answered
    │   ├── DecisionRefused         a child agent refused the decision
    │   ├── NotResumable            the run cannot be resumed
    │   ├── RunNotFound             there was never such a run
    │   ├── RunLost                 the run existed, but its log is gone
    │   ├── TooManyMessages         the run accepts no more messages
    │   ├── Forbidden               (access.caller) the caller lacks a right
    │   └── Overloaded              no capacity, or the process is shutting down
    │       └── SubjectOverloaded   … for this subject
    └── PortError                   an external failure; `__cause__` has the reason
        ├── ModelError
        ├── CallError
        │   ├── ToolError
        │   └── DelegationError
        └── StoreError
            ├── StoreFull
            ├── NotAnswered         the owner of a run did not log something in time
            ├── BlobMissing         the stored catalog of a run is gone
            ├── LeaseLost           another process owns the session
            └── LogTruncated        the newest records of a run are gone

Callers see the messages: they name the fix, and never contain keys, headers or stack traces.
"""

from typing import Literal


class DiptychError(Exception):
    """The root of the tree; never raised itself."""


class ConfigError(DiptychError):
    """Invalid configuration; each problem names its place and its fix."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LoopError(DiptychError):
    """An event or command that is impossible in the run's state: a bug in Diptych."""


class OutOfMemory(DiptychError):
    """A run exceeds the available memory and must end."""


class RequestError(DiptychError):
    """A request cannot be served; `code` is for programs, the message for people."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code


class InvalidRequest(RequestError):
    """The request is malformed."""


class IdempotencyMismatch(InvalidRequest):
    """The idempotency key was used before, with another body."""

    code = "idempotency_mismatch"

    def __init__(self) -> None:
        message = "this Idempotency-Key was used with another body; use a new key for a new request"
        super().__init__(message, param="Idempotency-Key")


class SessionBusy(InvalidRequest):
    """The session has an unfinished run: it cannot be deleted, or rejects new runs (`reject`)."""

    code = "session_busy"

    def __init__(self) -> None:
        message = "this session has an unfinished run; cancel it or wait until it ends"
        super().__init__(message, param="session_id")


class RunEnded(RequestError):
    """A message or decision for a run that has ended."""

    code = "run_over"

    def __init__(self) -> None:
        super().__init__("the run has ended; start a new run in its session")


class ApprovalNotFound(RequestError):
    """A decision for a call that never needed approval."""

    code = "approval_not_found"

    def __init__(self) -> None:
        super().__init__("no call with this id needs approval in this run")


class AlreadyDecided(RequestError):
    """A second decision on a call; the message names the first, and who made it."""

    code = "already_decided"


class InputNotFound(RequestError):
    """An answer to a call that never asked for input."""

    code = "input_not_found"

    def __init__(self) -> None:
        super().__init__("no call with this id asks for input in this run")


class AlreadyAnswered(RequestError):
    """A second answer to a question; the message names the first action, and its subject."""

    code = "already_answered"


class SignInRefused(RequestError):
    """A sign-in at a tool server cannot begin or end; the message says why, without secrets."""

    code = "sign_in_refused"


class DecisionRefused(RequestError):
    """A child agent refused a forwarded decision; `code` is the child's."""

    code = "decision_refused"


class NotResumable(RequestError):
    """The run did not fail, or its session has continued."""

    code = "not_resumable"

    def __init__(
        self,
        message: str = "its session has continued with other runs; send a message to the session",
    ) -> None:
        super().__init__(message)


class RunNotFound(RequestError):
    """There was never a run with this id."""

    code = "run_not_found"

    def __init__(self, message: str = "there is no run with this id") -> None:
        super().__init__(message)


class RunLost(RequestError):
    """The run existed, but its log is gone: its process ended, or it was evicted."""

    code = "run_lost"


class Overloaded(RequestError):
    """There is no capacity for another run; `retry_after` is in seconds."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SubjectOverloaded(Overloaded):
    """The subject has reached its own limit; others still have capacity."""

    code = "too_much_at_once"


class TooManyMessages(RequestError):
    """The run has received its maximum of 100 messages."""

    code = "too_many_messages"

    def __init__(self) -> None:
        super().__init__(
            "this run accepts no more messages; when it has ended, start a new run in its session"
        )


class PortError(DiptychError):
    """An external failure."""


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
    "model_garbage",  # a reply that does not match the API
    "model_cut",  # a stream that broke off
    "mock_exhausted",  # DEBUG_MOCK_RESPONSES is used up
]


class ModelError(PortError):
    """The model gave no usable reply.

    For `context_too_long`, `max_tokens` is the model's window and `prompt_tokens` the request's
    size in tokens, None if the endpoint does not say. For `malformed_call`, `written` is the
    model's text, or "" if unknown.
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
    "failed",  # the tool or agent reported an error, or its answer is invalid
    "timeout",
    "unavailable",  # its server or agent cannot be reached
    "refused",  # not sent: a circular call path, an invalid reference …
    "invalid_arguments",
    "denied",  # by a policy, a hook, a budget or an approver
    "repeated",  # not run, because earlier steps made the same call (loop.md §8)
    "skipped",  # not run, because another call failed or a message superseded it
    "interrupted",  # the run ended first
    "unknown",  # sent, but its outcome is unknown
]


class CallError(PortError):
    """A failed call; the model sees the kind and the message."""

    def __init__(self, kind: CallErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: CallErrorKind = kind
        self.message = message


class ToolError(CallError):
    """A tool call failed."""


class DelegationError(CallError):
    """A delegation failed; `child` is a `messages.ChildRun` if it was sent."""

    child: object = None


class StoreError(PortError):
    """The event log cannot be read or written."""


class StoreFull(StoreError):
    """The store has room for terminal events only."""


class NotAnswered(StoreError):
    """The owner of a run did not log something in time; callers see the message."""


class BlobMissing(StoreError):
    """A run's catalog is gone from the store, so the run cannot be rebuilt."""


class LeaseLost(StoreError):
    """Another process owns the session; this one's writes are rejected."""


class LogTruncated(StoreError):
    """The store lost a run's newest records; `seq` is the newest that it still has."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"the log of the run ends at record {seq}")
        self.seq = seq
