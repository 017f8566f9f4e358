"""The schemas of errors, in the two forms that they have."""

from typing import Literal

from diptych.http.openapi.reply import Reply


class ErrorFields(Reply):
    """What went wrong, in OpenAI's form."""

    message: str
    type: Literal[
        "invalid_request_error", "rate_limit_error", "insufficient_quota", "server_error", "aborted"
    ]
    param: str | None
    """The field, header or parameter that is wrong."""
    code: str | None


class Error(Reply):
    """The error of every path under `/v1/`."""

    error: ErrorFields


class Problem(Reply):
    """The error of every other path (RFC 9457)."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    code: str | None = None
    param: str | None = None
