"""The lines of a terminal while a run goes on: who waits gets the next one, the rest is sent."""

import asyncio
import os
import pty
from collections.abc import Iterator

import pytest

from diptych.cli.typed_lines import Messenger, TypedLines
from diptych.core.errors import RunEnded


class Stdin:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        return self.fd


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    ours, theirs = os.pipe()
    monkeypatch.setattr("sys.stdin", Stdin(ours))
    yield theirs
    os.close(ours)
    os.close(theirs)


class Screen:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def print_line(self, *parts) -> None:
        self.lines.append(str(parts))


class Agent:
    def __init__(self, error=None) -> None:
        self.sent, self.error = [], error

    async def send(self, run_id, message, *, is_follow_up=False) -> None:
        if self.error:
            raise self.error
        self.sent.append((run_id, message, is_follow_up))


async def soon(claim) -> None:
    async with asyncio.timeout(5):
        while not claim():  # noqa: ASYNC110 - a pipe is read whenever the loop comes to it
            await asyncio.sleep(0.01)


async def test_who_waits_gets_the_line_and_what_nobody_waits_for_is_passed_on(typed) -> None:
    passed: list[str] = []
    lines = TypedLines(passed.append)
    lines.open()
    given_up = asyncio.create_task(lines.next_line())
    await asyncio.sleep(0)
    given_up.cancel()
    waiting = asyncio.create_task(lines.next_line())
    await asyncio.sleep(0)
    os.write(typed, b"yes\n")
    assert await asyncio.wait_for(waiting, 5) == "yes"
    os.write(typed, b"no, wait\n\n  \n")
    await soon(lambda: passed)
    assert passed == ["no, wait"]
    lines.close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal, where Ctrl-D ends nothing for good as the end of a pipe does."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr("sys.stdin", Stdin(theirs))
    yield ours
    os.close(ours)
    os.close(theirs)


async def test_ctrl_d_is_an_empty_answer_to_who_waits(terminal) -> None:
    lines = TypedLines(lambda _: None)
    lines.open()
    first, second = (asyncio.create_task(lines.next_line()) for _ in range(2))
    await asyncio.sleep(0)
    os.write(terminal, b"\x04")
    assert await asyncio.wait_for(first, 5) == ""
    os.write(terminal, b"y\n")
    assert await asyncio.wait_for(second, 5) == "y"
    lines.close()


async def test_who_asks_after_ctrl_d_is_answered(terminal) -> None:
    lines = TypedLines(lambda _: None)
    lines.open()
    os.write(terminal, b"\x04")
    await soon(lambda: lines._fd is None)
    waiting = asyncio.create_task(lines.next_line())
    await asyncio.sleep(0)
    os.write(terminal, b"n\n")
    assert await asyncio.wait_for(waiting, 5) == "n"
    lines.close()


async def test_nothing_after_later_is_not_sent(typed) -> None:
    agent, screen = Agent(), Screen()
    messenger = Messenger(agent, screen)
    messenger.open("r")
    os.write(typed, b"/later\n/later   \n/later on\n")
    await soon(lambda: agent.sent)
    assert agent.sent == [("r", "on", True)]
    assert len(screen.lines) == 2
    messenger.close()


async def test_lines_are_sent_in_order_to_steer_or_to_follow_up(typed) -> None:
    agent, screen = Agent(), Screen()
    messenger = Messenger(agent, screen)
    messenger.open("r")
    os.write(typed, b"one\n/later two\n/latest three\n")
    await soon(lambda: len(agent.sent) == 3)
    assert agent.sent == [("r", "one", False), ("r", "two", True), ("r", "/latest three", False)]
    messenger.close()


async def test_what_could_not_be_sent_is_said(typed) -> None:
    screen = Screen()
    messenger = Messenger(Agent(RunEnded()), screen)
    messenger.open("r")
    os.write(typed, b"too late\n")
    await soon(lambda: screen.lines)
    assert "not sent: too late: the run has ended" in screen.lines[0]
    messenger.close()


async def test_what_was_under_way_when_the_run_ended_is_said(typed) -> None:
    class Slow(Agent):
        async def send(self, *message, is_follow_up=False) -> None:
            await asyncio.sleep(60)

    screen = Screen()
    messenger = Messenger(Slow(), screen)
    messenger.open("run-1")
    os.write(typed, b"to Rome\nor to Paris\n")
    await soon(lambda: len(messenger._sending) == 2)
    await asyncio.sleep(0.05)
    messenger.close()
    await soon(lambda: len(screen.lines) == 2)
    assert "the run may not have taken this: to Rome" in screen.lines[0]
    assert "not sent: or to Paris" in screen.lines[1]


async def test_a_line_that_comes_as_the_run_ends_is_not_lost_silently(typed) -> None:
    agent, screen = Agent(), Screen()
    messenger = Messenger(agent, screen)
    messenger.open("run-1")
    messenger._take("to Rome")  # nobody has begun to send it
    messenger.close()
    await asyncio.sleep(0.05)
    assert agent.sent == []
    assert ["not sent: to Rome" in line for line in screen.lines] == [True]
