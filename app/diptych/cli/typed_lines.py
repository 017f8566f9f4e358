"""Lines typed while a run goes on: for calls that wait, else messages to the run."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from diptych.cli.client.remote import RemoteAgent
from diptych.cli.output.screen import Mark, Screen
from diptych.cli.questions import Question
from diptych.core.codec import Record
from diptych.core.errors import DiptychError
from diptych.core.waits import REQUESTS

LATER = "/later"
_FORM_HINT = "  /decline refuses to answer, /cancel puts it off"
_CHUNK = 4_096  # bytes, at most, of one line that a terminal gives


class InputRequired(DiptychError):
    """A call waits for a decision or an answer, and there is no terminal to ask on."""

    def __init__(self, record: Record) -> None:
        is_question = record.event_type == "input_requested"
        super().__init__(f"a call waits for {'an answer' if is_question else 'a decision'}")
        self.run_id = record.run_id
        self.call_id = str(record.metadata["call_id"])
        self._kind = str(record.metadata.get("kind", ""))

    def way(self, target: str) -> str:
        """Say how to go on, at an agent that runs."""
        what = f"{self.run_id} {self.call_id} --at {target}"
        match self._kind:
            case "":
                return f"diptych approve {what}, or diptych reject {what}"
            case "form":
                return f"diptych answer {what} FIELD=VALUE …, or --decline"
            case "url":
                return f"open its link, then diptych answer {what}, or --decline"
        return f"sign in; diptych answer {what} --cancel gives it up"


def can_ask() -> bool:
    """Return whether stdin and stderr are a terminal, so that a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


@dataclass(slots=True)
class _Outgoing:
    """A typed line on its way to the agent; `message` is empty for a decision."""

    message: str
    send: Callable[[], Coroutine[Any, Any, None]]
    is_sent: bool = False  # or at least begun to be


class TypedLines:
    """Reads the terminal while a run goes on.

    A line is for the call that has waited longest: it decides on it, or answers its question. If
    none waits, it is sent to the run. Unless it `steers`, the terminal is read only while a call
    waits. Unless it `asks`, nothing is read, and a call that waits raises `InputRequired`.
    """

    def __init__(
        self, agent: RemoteAgent, screen: Screen, *, asks: bool, steers: bool = False
    ) -> None:
        self._agent = agent
        self._screen = screen
        self._asks = asks
        self._steers = steers and asks
        self._run_id = ""
        self._waiting: dict[str, Record] = {}  # calls, by their id; the first one is asked about
        self._question: Question | None = None  # of the first one
        self._outgoing: deque[_Outgoing] = deque()
        self._sender: asyncio.Task[None] | None = None

    def open(self, run_id: str) -> None:
        """Begin to read for a run, in the running loop."""
        self._run_id = run_id
        if self._steers:
            self._listen()

    def note(self, record: Record) -> None:
        """Take the next record of the run. Raises `InputRequired`."""
        call_id = str(record.metadata.get("call_id"))
        if record.event_type in REQUESTS:
            if record.metadata.get("kind") == "caller_tool":
                return  # the program that started the run answers it
            if not self._asks:
                raise InputRequired(record)
            self._waiting[call_id] = record
            if len(self._waiting) == 1:
                self._ask()
        elif call_id in self._waiting:  # decided elsewhere, or it has a result
            was_asked = next(iter(self._waiting)) == call_id
            self._answered(call_id, asks_next=was_asked)

    def close(self) -> None:
        """Leave the terminal to others, and name the messages that the run has not taken."""
        self._waiting.clear()
        if self._asks:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if self._sender:
            self._sender.cancel()
        for line in self._outgoing:
            if line.message:
                became = "the run may not have taken this" if line.is_sent else "not sent"
                self._warn(f"{became}: {line.message}")
        self._outgoing.clear()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read)

    def _ask(self) -> None:
        record = next(iter(self._waiting.values()))
        self._question = Question(record)
        self._listen()
        if self._question.kind == "form":
            self._screen.print_line((_FORM_HINT, "dim"))
        self._screen.show_prompt(self._question.prompt)

    def _answered(self, call_id: str, *, asks_next: bool) -> None:
        del self._waiting[call_id]
        if self._waiting and asks_next:
            self._ask()
        elif not self._waiting and not self._steers:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _read(self) -> None:
        content = os.read(sys.stdin.fileno(), _CHUNK)
        if not content and not self._waiting:  # Ctrl-D; the next question reads again
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        if not content and self._waiting and self._question and self._question.kind != "approval":
            content = b"/cancel"
        for line in content.decode(errors="replace").splitlines() or [""]:
            self._take(line.strip())

    def _take(self, line: str) -> None:
        if self._waiting and self._question:
            self._answer(self._question, line)
        elif line.split(maxsplit=1)[:1] == [LATER]:
            if later := line.removeprefix(LATER).strip():
                self._send(later, lambda: self._agent.send(self._run_id, later, is_follow_up=True))
            else:
                self._warn(f"not sent: nothing stands after {LATER}")
        elif line.startswith("/"):
            self._warn(f"not sent: while the agent works there is only {LATER}; Ctrl-C aborts")
        elif line:
            self._send(line, lambda: self._agent.send(self._run_id, line))

    def _answer(self, question: Question, line: str) -> None:
        try:
            answer = question.take(line)
        except ValueError as error:
            self._warn(str(error))
            answer = None
        if answer is None:
            self._screen.show_prompt(question.prompt)
            return
        call_id = next(iter(self._waiting))
        self._answered(call_id, asks_next=True)
        kind = question.wait_kind
        self._send("", lambda: self._agent.answer(self._run_id, call_id, kind, answer))

    def _send(self, message: str, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._outgoing.append(_Outgoing(message, send))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Send the lines in the order in which they were typed."""
        while self._outgoing:
            line = self._outgoing[0]
            line.is_sent = True
            try:
                await line.send()
            except DiptychError as error:
                self._warn(f"not sent: {line.message}: {error}" if line.message else str(error))
            self._outgoing.popleft()

    def _warn(self, text: str) -> None:
        self._screen.print_line(Mark.NOTE.value, text)
