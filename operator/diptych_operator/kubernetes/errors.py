"""What a request to the Kubernetes API can raise.

ApiError                  the API did not do what it was asked
├── NotFoundError         404: there is no such object
├── ConflictError         409: somebody else has changed the object
│   └── AlreadyExistsError    there is an object of that name already
├── InvalidError          400, 413, 422, some 500s: the object is not valid; a retry is of no use
├── ForbiddenError        403: a right is missing, or an admission rule says no
├── NamespaceTerminatingError  403: the namespace is being deleted, so nothing is made in it
└── UnavailableError      anything else: no answer, 401, 429, 5xx; a retry may help
"""

from typing import ClassVar


class ApiError(Exception):
    """The API did not do what it was asked.

    `str()` is the API's own message, `status` the HTTP status (0 without an answer), `retry_after`
    the seconds that the API asks to wait. `result` is the error's name in metrics.
    """

    result: ClassVar[str] = "cluster"

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class NotFoundError(ApiError):
    """There is no such object."""

    result = "missing"


class ConflictError(ApiError):
    """Somebody else has changed the object."""

    result = "conflict"


class AlreadyExistsError(ConflictError):
    """There is an object of that name already."""

    result = "exists"


class InvalidError(ApiError):
    """The object is not valid; a retry is of no use."""

    result = "refused"


class ForbiddenError(ApiError):
    """A right is missing, or an admission rule says no."""

    result = "forbidden"


class NamespaceTerminatingError(ApiError):
    """The namespace is being deleted, so nothing is made in it any more."""

    result = "terminating"


class UnavailableError(ApiError):
    """The API cannot answer now; a retry may help."""

    result = "unavailable"


def error_for(status: int, reason: str, message: str, retry_after: float | None = None) -> ApiError:
    """Return the error for an HTTP status and the `reason` of the API's Status object."""
    kind = AlreadyExistsError if reason == "AlreadyExists" else _BY_STATUS.get(status)
    if not reason and message.startswith(_MALFORMED):
        kind = InvalidError
    if kind is ForbiddenError and message.endswith(_TERMINATING):
        kind = NamespaceTerminatingError
    return (kind or UnavailableError)(message, status, retry_after)


_TERMINATING = "because it is being terminated"

_MALFORMED = ("failed to create typed patch object", "failed to convert new object")
"""How a 500 begins that is the object's fault: server-side apply of a field that does not exist or
has another type (kubernetes/kubernetes#139253)."""

_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: InvalidError,
    422: InvalidError,
}
