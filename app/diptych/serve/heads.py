"""Whether a head names its host as HTTP/1.1 demands.

Not here: what becomes of one that does not (`http_protocol`), and which hosts are the agent's own
(`http.guards`).
"""

import re

_HOST = re.compile(rb"([\w.~%!$&'()*+,;=-]*|\[[\w.:%~-]+\])(:\d*)?", re.ASCII)  # RFC 3986, 3.2


def has_one_host(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Whether there is just one Host, of a valid form (RFC 9112, section 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if not hosts:
        return version == "1.0"
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None
