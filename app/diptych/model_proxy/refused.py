"""The error of a request that a ModelAPI's proxy answers itself."""


class Refused(Exception):
    """A request that is not passed on, or whose reply did not begin.

    `kind` is the `type` of OpenAI's errors; `retry_after` is in seconds. `outcome` is that of the
    audit log and the metrics.
    """

    def __init__(  # noqa: PLR0913 - the parts of an error
        self,
        status: int,
        code: str,
        message: str,
        *,
        kind: str = "invalid_request_error",
        retry_after: int | None = None,
        outcome: str = "refused",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.kind = kind
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if kind == "insufficient_quota":
            self.headers["x-should-retry"] = "false"  # OpenAI's clients repeat any other 429
        self.outcome = outcome
