"""The Lua scripts that run inside Redis: methods, each call of which is one step."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the hash that names it."""

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
RUNS_WHEN_FULL = _load("runs", "leases", flags=" flags=allow-oom")  # a full store runs it too
BUDGETS = _load("budget")
