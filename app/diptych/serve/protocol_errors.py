"""Whole answers, as bytes, to what never reaches the application."""

from http import HTTPStatus

import orjson

_ERRORS = {
    "invalid_host": (400, "send one Host header, with a host and perhaps a port"),
    "invalid_request": (400, "this is no request of HTTP/1.1 that can be read in one way only"),
    "request_timeout": (408, "the request did not arrive in time"),
    "head_too_large": (431, "send up to 128 headers in 64 KiB"),
    "not_implemented": (501, "this agent is no proxy: it knows no CONNECT"),
    "invalid_version": (505, "this agent speaks HTTP/1.1 and HTTP/1.0"),
    "overloaded": (503, "this agent has too many connections now, or leaves"),
}
"""Status and text, by what problem+json has as `code`."""


def error_response(code: str) -> bytes:
    """Write the answer with a code; its body is problem+json (RFC 9457)."""
    status, detail = _ERRORS[code]
    phrase = HTTPStatus(status).phrase
    body = orjson.dumps(
        {"type": "about:blank", "title": phrase, "status": status, "detail": detail, "code": code}
    )
    retry = "Retry-After: 1\r\n" if code == "overloaded" else ""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/problem+json\r\n{retry}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
