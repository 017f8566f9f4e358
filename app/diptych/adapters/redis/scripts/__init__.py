"""The scripts that run inside Redis; each file says what it does and what it takes.

`prelude.lua` stands before each of them. They are sent whole when a connection begins (`ALL`), and
then called by their hash.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """Text that Redis runs as one step, and the hash that names it."""

    source: bytes
    sha: bytes


def _read(name: str, shebang: str | None = None) -> Script:
    folder = files(__package__)
    own, _, body = (folder / f"{name}.lua").read_text("utf-8").partition("\n")
    prelude = (folder / "prelude.lua").read_text("utf-8")
    source = f"{shebang or own}\n{prelude}\n{body}".encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


EPOCH = _read("epoch")
OPEN = _read("open")
APPEND = _read("append")
APPEND_END = _read("append", "#!lua flags=allow-oom")
ENTRIES = _read("entries")
SESSIONS = _read("sessions")
DELETE = _read("delete")
CLAIM = _read("claim")
HEAD = _read("head")
CONCLUDE = _read("conclude")
RENEW = _read("renew")
RELEASE = _read("release")
UNOWNED = _read("unowned")
DEMAND = _read("demand")
DEMAND_END = _read("demand", "#!lua flags=allow-oom")

ALL = (
    OPEN,
    APPEND,
    APPEND_END,
    ENTRIES,
    SESSIONS,
    DELETE,
    CLAIM,
    HEAD,
    CONCLUDE,
    RENEW,
    RELEASE,
    UNOWNED,
    DEMAND,
    DEMAND_END,
)
