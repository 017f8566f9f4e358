"""What can go wrong between the operator and the Kubernetes API.

ClusterError              the API did not do what it was asked
├── MissingError          404: there is no such object
├── ConflictError         409: somebody else was there first
│   └── ExistsError       there is an object of that name already
├── RefusedError          400, 413, 422: the object is not valid; asking again is no use
├── ForbiddenError        403: a right is missing, or an admission rule says no
└── UnavailableError      anything else: no answer, 401, 429, 5xx; asking again may help
"""


class ClusterError(Exception):
    """The API did not do what it was asked; `str()` is its own sentence, `status` its code."""

    def __init__(self, sentence: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after


class MissingError(ClusterError):
    """There is no such object."""


class ConflictError(ClusterError):
    """Somebody else was there first."""


class ExistsError(ConflictError):
    """There is an object of that name already."""


class RefusedError(ClusterError):
    """The object is not valid; asking again is no use."""


class ForbiddenError(ClusterError):
    """A right is missing, or an admission rule says no."""


class UnavailableError(ClusterError):
    """The API cannot be asked now; `retry_after` is in seconds, if it said when."""


def error_for(
    status: int, reason: str, sentence: str, retry_after: float | None = None
) -> ClusterError:
    """Give the error for an HTTP status and the API's reason in one word."""
    kind = ExistsError if reason == "AlreadyExists" else _KINDS.get(status, UnavailableError)
    return kind(sentence, status, retry_after)


_KINDS: dict[int, type[ClusterError]] = {
    400: RefusedError,
    403: ForbiddenError,
    404: MissingError,
    409: ConflictError,
    413: RefusedError,
    422: RefusedError,
}
