"""Lines typed while a run goes on: answers to questions, and messages to the run."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from diptych.cli.client.agent_client import AgentClient
from diptych.cli.output.screen import Screen
from diptych.core.errors import DiptychError

LATER = "/later"
_CHUNK = 4_096  # bytes, at most, of one line that a terminal gives


class TypedLines:
    """Reads the terminal while a run goes on. Whoever waits for a line gets it; else it is sent."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._readers: deque[asyncio.Future[str]] = deque()
        self._fd: int | None = None

    def open(self) -> None:
        """Begin to read, in the running loop."""
        self._fd = sys.stdin.fileno()
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        """Leave the terminal to others."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._fd = None

    async def next_line(self) -> str:
        """Give the next line, to whoever has waited longest; "" for Ctrl-D."""
        if self._fd is None:  # somebody typed Ctrl-D before there was a question
            self.open()
        line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._readers.append(line)
        try:
            return await line
        finally:
            if line in self._readers:
                self._readers.remove(line)

    def _read(self) -> None:
        content = os.read(self._fd, _CHUNK) if self._fd is not None else b""
        if not content and not self._answer(""):  # Ctrl-D: whoever reads questions next sees it
            self.close()
        for line in content.decode(errors="replace").splitlines():
            if not self._answer(line) and line.strip():
                self._on_line(line.strip())

    def _answer(self, line: str) -> bool:
        """Give a line to whoever waits for one; False if nobody does."""
        while self._readers and self._readers[0].done():  # it was cancelled just now
            self._readers.popleft()
        if self._readers:
            self._readers.popleft().set_result(line)
            return True
        return False


@dataclass(slots=True)
class _TypedLine:
    """A line that is sent, and what became of it if that is cut off."""

    text: str
    became: str = "not sent"


class Messenger:
    """Sends typed lines to the run that goes on: to steer it, or with `/later` to follow up."""

    def __init__(self, agent: AgentClient, screen: Screen) -> None:
        self._agent = agent
        self._screen = screen
        self._run_id: str | None = None
        self._sending: dict[asyncio.Task[None], _TypedLine] = {}  # in the order of the lines
        self._turn = asyncio.Lock()
        self.lines = TypedLines(self._take)

    def open(self, run_id: str) -> None:
        """Send what is typed from now on to this run."""
        self._run_id = run_id
        self.lines.open()

    def close(self) -> None:
        """Send nothing more, and say so of what is not sent: the run has ended."""
        self.lines.close()
        for task, line in self._sending.items():
            if task.cancel():
                self._tell(f"{line.became}: {line.text}")
        self._sending.clear()

    def _take(self, typed: str) -> None:
        is_later = typed.split(maxsplit=1)[:1] == [LATER]
        text = typed.removeprefix(LATER).strip() if is_later else typed
        if not text:
            self._tell(f"not sent: nothing stands after {LATER}")
            return
        line = _TypedLine(text)
        task = asyncio.create_task(self._send(line, is_follow_up=is_later))
        self._sending[task] = line
        task.add_done_callback(lambda done: self._sending.pop(done, None))

    async def _send(self, line: _TypedLine, *, is_follow_up: bool) -> None:
        async with self._turn:  # in the order in which they were typed
            line.became = "the run may not have taken this"
            try:
                await self._agent.send(self._run_id or "", line.text, is_follow_up=is_follow_up)
            except DiptychError as error:
                self._tell(f"not sent: {line.text}: {error}")

    def _tell(self, what: str) -> None:
        self._screen.print_line(("! ", "yellow"), what)
