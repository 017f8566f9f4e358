"""The Lua scripts that run inside Redis; each has several methods, executed atomically."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its hash, for EVALSHA."""

    source: str
    sha: str


def _load(*names: str, flags: str = "") -> Script:
    parts = [
        (files(__package__) / f"{each}.lua").read_text("utf-8")
        for each in ("prelude", *names, "call")
    ]
    source = "\n".join([f"#!lua{flags}", *parts])
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


RUNS = _load("runs", "leases")
RUNS_WHEN_FULL = _load("runs", "leases", flags=" flags=allow-oom")  # also runs in a full store
BUDGETS = _load("budget")
PUSHES = _load("pushes")
PUSHES_WHEN_FULL = _load("pushes", flags=" flags=allow-oom")
