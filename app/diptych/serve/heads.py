"""What is wrong with a head: its version, its host, its framing."""

import re

import httptools

_HOST = re.compile(rb"([\w.~%!$&'()*+,;=-]*|\[[\w.:%~-]+\])(:\d*)?", re.ASCII)  # RFC 3986, 3.2


def head_problem(parser: httptools.HttpRequestParser, headers: list[tuple[bytes, bytes]]) -> str:
    """Give the code of what a head is refused for, "" if it is taken.

    HTTP/1.0 has no transfer codings: a proxy may see another body there (RFC 9112, section 6.1).
    The parser knows versions 0.9 and 2.0, too, whose messages look otherwise.
    """
    version = parser.get_http_version()
    if version not in {"1.0", "1.1"}:
        return "invalid_version"
    if not has_one_host(headers, version):
        return "invalid_host"
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
        return "invalid_request"
    return "not_implemented" if parser.get_method() == b"CONNECT" else ""


def has_one_host(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Whether there is just one Host, of a valid form (RFC 9112, section 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if not hosts:
        return version == "1.0"
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None
