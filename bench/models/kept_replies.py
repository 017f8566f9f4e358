"""Keeps what a model has said, so that a measurement that was broken off goes on where it was.

A server on its own gives the same reply to the same request, so a reply is known by what led to it:
the server's build, its model, its chat template, the request, and what it is read for. It is
asked anew when any of these changes, and with `FRESH=1`.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diptych-models"


class KeptReplies:
    """Replies by key, in a file that is only added to; None for a folder keeps them in memory."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder and folder / "replies.jsonl"
        self._lock = Lock()
        self._known: dict[str, str] = {}
        if self._file and self._file.exists() and not os.environ.get("FRESH"):
            lines = self._file.read_text().splitlines()
            self._known = {key: said for key, said in map(_read, lines) if key}

    def find(self, key: str) -> str | None:
        return self._known.get(key)

    def add(self, key: str, said: str) -> None:
        with self._lock:
            self._known[key] = said
            if self._file:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with self._file.open("a") as file:
                    file.write(json.dumps([key, said]) + "\n")


def key_of(server: str, body: dict[str, Any], words: Sequence[str]) -> str:
    """Name a reply: `server` is what it runs, `words` those up to which it is read, if any."""
    content = json.dumps([server, body, list(words)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _read(line: str) -> tuple[str, str]:
    try:
        key, said = json.loads(line)
    except ValueError:  # cut off when a measurement was broken off
        return "", ""
    return str(key), str(said)
