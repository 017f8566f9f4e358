"""The Lua scripts that run inside Redis; each file says what it does and what it takes.

`prelude.lua` is put before each of them, `lists.lua` before those that change or read lists, and
`expiry.lua` before those that say when runs expire.
All are loaded when a connection begins (`ALL`), and then called by their hash.
"""

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script, which Redis runs as one step, and the hash that names it."""

    source: bytes
    sha: bytes


def _load(name: str, *preludes: str, shebang: str | None = None) -> Script:
    folder = files(__package__)
    own_shebang, _, body = (folder / f"{name}.lua").read_text("utf-8").partition("\n")
    parts = [(folder / f"{each}.lua").read_text("utf-8") for each in ("prelude", *preludes)]
    source = "\n".join([shebang or own_shebang, *parts, body]).encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


_ALLOW_OOM = "#!lua flags=allow-oom"  # also when the store is full

EPOCH = _load("epoch")
PROBE = _load("probe")
OPEN = _load("open", "lists", "expiry")
APPEND = _load("append")
APPEND_END = _load("append", shebang=_ALLOW_OOM)
CLAIM = _load("claim")
QUEUE_HEAD = _load("queue_head")
NEXT_RUN = _load("next_run", "lists")
FINISH_RUN = _load("finish_run", "lists", "expiry")
RENEW = _load("renew", "expiry")
RELEASE = _load("release")
OVERDUE_RUNS = _load("overdue_runs")
UNOWNED_SESSIONS = _load("unowned_sessions", "lists")
SEND_SIGNAL = _load("send_signal")
SEND_STOP = _load("send_signal", shebang=_ALLOW_OOM)
DELETE_SESSION = _load("delete_session", "lists")
LIST_RUNS = _load("list_runs", "lists")
LIST_UPDATED_RUNS = _load("list_updated_runs", "lists")
LIST_SESSIONS = _load("list_sessions")
COUNT_EVENTS = _load("count_events", "lists")
BUDGET = _load("budget")

ALL = tuple(script for script in globals().copy().values() if isinstance(script, Script))
