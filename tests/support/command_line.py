"""The command line in processes of its own, and a view that keeps what it is shown."""

import asyncio
import os
import pty
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from diptych.core.codec import Record
from diptych.ports import Item, Notice

PATIENCE = 100.0  # seconds; processes start slowly on a machine that has other work


async def diptych(*words: str, stdin: str = "") -> tuple[int, str, str]:
    """Type a command where there is no terminal; gives its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diptych", *words), stdin=-1, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(stdin.encode())
    return process.returncode or 0, out.decode(), err.decode()


async def at_a_terminal(answers: Mapping[str, str], *words: str) -> tuple[int, str]:
    """Type a command at a terminal, and an answer to each of these prompts, once each, in order.

    Gives its exit code and what was to be seen.
    """
    mine, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diptych", *words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "200"},
    )
    os.close(theirs)
    os.set_blocking(mine, False)
    seen, left = "", list(answers.items())

    def look() -> None:
        nonlocal seen
        with suppress(BlockingIOError, OSError):
            seen += os.read(mine, 65_536).decode(errors="replace")

    async with asyncio.timeout(PATIENCE):
        while process.returncode is None:
            look()
            if left and left[0][0] in seen:
                os.write(mine, f"{left.pop(0)[1]}\n".encode())
            await asyncio.sleep(0.05)
    look()
    os.close(mine)
    return process.returncode, seen


class RecordingRenderer:
    """A view that keeps what it is shown, and calls back at a piece of the answer."""

    def __init__(self, at: int = 5, do: Callable[[], None] = lambda: None) -> None:
        self.text = ""
        self.kinds: list[str] = []
        self.notices: list[Notice] = []
        self._left = at
        self._do = do

    def render(self, item: Item) -> None:
        self.kinds.append(item.event_type if isinstance(item, Record) else item.type)
        if isinstance(item, Notice):
            self.notices.append(item)
        elif item.event_type == "text":
            self.text += str(item.content)
            self._left -= 1
            if self._left == 0:
                self._do()

    def refresh(self) -> None: ...
