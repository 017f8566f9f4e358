"""The Lua scripts that run inside Redis; each file says what it does and what it takes.

`prelude.lua` is put before each of them. All are loaded when a connection begins (`ALL`), and then
called by their hash.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script, which Redis runs as one step, and the hash that names it."""

    source: bytes
    sha: bytes


def _load(name: str, shebang: str | None = None) -> Script:
    folder = files(__package__)
    own_shebang, _, body = (folder / f"{name}.lua").read_text("utf-8").partition("\n")
    prelude = (folder / "prelude.lua").read_text("utf-8")
    source = f"{shebang or own_shebang}\n{prelude}\n{body}".encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


_ALLOW_OOM = "#!lua flags=allow-oom"  # also when the store is full

EPOCH = _load("epoch")
OPEN = _load("open")
APPEND = _load("append")
APPEND_END = _load("append", _ALLOW_OOM)
LIST_SESSION_RUNS = _load("list_session_runs")
LIST_SESSIONS = _load("list_sessions")
DELETE_SESSION = _load("delete_session")
CLAIM = _load("claim")
NEXT_RUN = _load("next_run")
FINISH_RUN = _load("finish_run")
RENEW = _load("renew")
RELEASE = _load("release")
UNOWNED_SESSIONS = _load("unowned_sessions")
SEND_SIGNAL = _load("send_signal")
SEND_STOP = _load("send_signal", _ALLOW_OOM)

ALL = tuple(script for script in globals().copy().values() if isinstance(script, Script))
