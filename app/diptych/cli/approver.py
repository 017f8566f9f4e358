"""Asks the person at the terminal whether calls that wait are made, one call after another."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from diptych.cli.client.agent_client import AgentClient, Choice
from diptych.cli.output.screen import Screen
from diptych.cli.output.wording import asked_text, one_line
from diptych.core.codec import Record
from diptych.core.errors import DiptychError

_YES = {"y", "yes"}
_NO = {"", "n", "no"}
_PROMPT = "? {call} ({call_id}): make this call? [y]es, [n]o, or why not: "
_CALL_CHARS = 100  # in the prompt, which says which call is meant; all of it stands above
_LINE = 4_096  # bytes of an answer


class InputRequired(DiptychError):
    """A call waits for a decision, and nobody is there to ask."""

    def __init__(self, record: Record) -> None:
        super().__init__("a call waits for a decision")
        self.run_id = record.run_id
        self.call_id = str(record.metadata["call_id"])


def can_ask() -> bool:
    """Whether there is a person to ask: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Approver:
    """Asks about each call of a run that waits. `no_input` raises `InputRequired` instead.

    `read_line` gives the next line of the terminal, if something else reads it, too.
    """

    def __init__(
        self,
        agent: AgentClient,
        screen: Screen,
        *,
        no_input: bool,
        read_line: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._read_line = read_line or _read_line
        self._agent = agent
        self._screen = screen
        self._no_input = no_input
        self._lock = asyncio.Lock()
        self._asking: dict[str, asyncio.Task[None]] = {}

    def note(self, record: Record) -> None:
        """Take the next record of the run. Raises `InputRequired`."""
        call_id = record.metadata.get("call_id")
        if record.event_type == "approval_requested":
            if self._no_input:
                raise InputRequired(record)
            self._asking[str(call_id)] = asyncio.create_task(self._ask(record))
        elif task := self._asking.pop(str(call_id), None):
            task.cancel()  # it was decided, here or elsewhere

    def close(self) -> None:
        """Ask nothing any more."""
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    async def _ask(self, record: Record) -> None:
        call_id = str(record.metadata["call_id"])
        async with self._lock:
            content: Any = record.content
            call = one_line(asked_text(content), _CALL_CHARS)
            self._screen.show_prompt(_PROMPT.format(call=call, call_id=call_id))
            answer = (await self._read_line()).strip()
            decision: Choice = "approve" if answer.lower() in _YES else "reject"
            reason = "" if answer.lower() in _YES | _NO else answer
            try:
                await self._agent.decide(record.run_id, call_id, decision, reason)
            except DiptychError as error:
                self._screen.print_line(("! ", "yellow"), str(error))


async def _read_line() -> str:
    """Read a line from the terminal; cancelled, it leaves the terminal to others."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            line.set_result(os.read(fd, _LINE))

    loop.add_reader(fd, read)
    try:
        return (await line).decode(errors="replace")
    finally:
        loop.remove_reader(fd)
