"""Errors in the form of A2A's REST binding, which is that of Google's APIs (A2A 1.0, 11.6)."""

REST_PATH = "/a2a/rest"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
OWN_DOMAIN = "diptych.dev"  # of reasons that are not A2A's

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "OUT_OF_RANGE",
    415: "INVALID_ARGUMENT",
    421: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


def is_rest_path(path: str) -> bool:
    """Say whether a path is one of the REST binding, or below it."""
    return path == REST_PATH or path.startswith(f"{REST_PATH}/")


def status_name(status: int) -> str:
    """Give the name that `google.rpc.Code` has for a status of HTTP."""
    return _STATUS_NAMES.get(status, "UNKNOWN")


def rest_error(status: int, message: object, reason: str) -> dict[str, object]:
    """Write an error of a request that no method has seen."""
    info = {"@type": ERROR_INFO, "reason": reason, "domain": OWN_DOMAIN, "metadata": {}}
    name = status_name(status)
    return {"error": {"code": status, "status": name, "message": message, "details": [info]}}
