"""What the processes of one run share (`pytest -n`): things that are made once, and turns.

Cases live in namespaces of their own and run side by side. A few do something to the release
itself; such a case waits until no other runs, and others wait for its end.
"""

import contextlib
import fcntl
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Run:
    """One run of the cases. Its folder is what its processes have in common."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="diptych-e2e-"))

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Make something in the first process that needs it; give it (as JSON) to all.

        Where that failed, it fails for all, at once and with the same words.
        """
        file = self.folder / f"{name}.json"
        with self._locked(name, fcntl.LOCK_EX):
            if not file.exists():
                try:
                    made = {"made": make()}
                except Exception as error:  # whatever it was, the other processes must learn of it
                    file.write_text(json.dumps({"failure": str(error)}))
                    raise
                file.write_text(json.dumps(made))
        kept = json.loads(file.read_text())
        if "failure" in kept:
            raise RuntimeError(kept["failure"])
        return kept["made"]

    def note(self, name: str, value: Any) -> None:
        (self.folder / f"{name}.note").write_text(json.dumps(value))

    def noted(self, name: str) -> Any:
        """Give what a process has noted, or None."""
        file = self.folder / f"{name}.note"
        return json.loads(file.read_text()) if file.exists() else None

    def turn(self, *, alone: bool) -> contextlib.AbstractContextManager[None]:
        """Wait for one's turn: side by side with others, or alone."""
        return self._locked("turn", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

    @contextlib.contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, how)
            yield
