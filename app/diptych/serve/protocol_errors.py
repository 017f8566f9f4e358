"""Whole answers, as bytes, to what never reaches the application.

Not here: when each is sent (`http_protocol`), the application's own errors (`http.errors`).
"""

import orjson

_ERRORS = {
    400: (
        "Bad Request",
        "send one Host header, with a host and perhaps a port",
        "invalid_host",
    ),
    408: ("Request Timeout", "the request did not arrive in time", "request_timeout"),
    431: ("Request Header Fields Too Large", "send up to 128 headers in 64 KiB", "head_too_large"),
    501: ("Not Implemented", "this agent is no proxy: it knows no CONNECT", "not_implemented"),
    503: ("Service Unavailable", "this agent has too many connections now", "overloaded"),
}


def error_response(status: int) -> bytes:
    """Write the answer with a status; its body is problem+json (RFC 9457)."""
    phrase, detail, code = _ERRORS[status]
    body = orjson.dumps(
        {"type": "about:blank", "title": phrase, "status": status, "detail": detail, "code": code}
    )
    retry = "Retry-After: 1\r\n" if status == 503 else ""  # noqa: PLR2004
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/problem+json\r\n{retry}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
