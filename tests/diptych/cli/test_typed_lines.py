"""The lines of a terminal while a run goes on: decisions on calls that wait, else messages."""

import asyncio
import os
import pty
from collections.abc import Iterator

import pytest
from support.run_records import Writer

from diptych.cli.typed_lines import InputRequired, TypedLines
from diptych.core.errors import RunEnded


class Stdin:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        return self.fd


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal, where Ctrl-D ends nothing for good as the end of a pipe does."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr("sys.stdin", Stdin(theirs))
    yield ours
    os.close(ours)
    os.close(theirs)


class Screen:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def print_line(self, *parts) -> None:
        self.lines.append("".join(p if isinstance(p, str) else p[0] for p in parts))

    def show_prompt(self, text) -> None:
        self.lines.append(text)


class Agent:
    """Notes what it is sent; `delay` is how long it takes to answer."""

    def __init__(self, error=None, delay=0.0) -> None:
        self.sent, self.error, self.delay = [], error, delay

    async def send(self, run_id, message, *, is_follow_up=False) -> None:
        await self._answer(run_id, message, is_follow_up)

    async def answer(self, run_id, call_id, kind, body) -> None:
        await self._answer(run_id, call_id, kind, *body.values())

    async def _answer(self, *request) -> None:
        await asyncio.sleep(self.delay)
        if self.error:
            raise self.error
        self.sent.append(request)


def opened(agent, *, steers=True) -> tuple[TypedLines, Screen]:
    screen = Screen()
    lines = TypedLines(agent, screen, asks=True, steers=steers)
    lines.open("r")
    return lines, screen


def asked(call_id: str):
    call = {"tool": "pay", "arguments": {"n": call_id}}
    return Writer()("approval_requested", call, call_id=call_id)


def question(call_id: str, kind="form"):
    count = {"type": "integer"}
    schema = {"properties": {"n": count, "m": count}, "required": ["n"]}
    return Writer()("input_requested", "How many?", call_id=call_id, kind=kind, schema=schema)


def decided(call_id: str):
    return Writer()("approval_decided", "approve", call_id=call_id)


async def soon(claim) -> None:
    async with asyncio.timeout(5):
        while not claim():  # noqa: ASYNC110 - a terminal is read whenever the loop comes to it
            await asyncio.sleep(0.01)


async def test_lines_are_sent_in_order_to_steer_or_to_follow_up(keyboard) -> None:
    agent = Agent()
    lines, screen = opened(agent)
    os.write(keyboard, b"one\n\n  \n/later two\n/later  \n/latest\nthree\n")
    await soon(lambda: len(agent.sent) == 3)
    assert agent.sent == [("r", "one", False), ("r", "two", True), ("r", "three", False)]
    assert screen.lines == [
        "! not sent: nothing stands after /later",
        "! not sent: while the agent works there is only /later; Ctrl-C aborts",
    ]
    lines.close()


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        (b"y\n", ("approve", "")),
        (b"Yes\n", ("approve", "")),
        (b"\n", ("reject", "")),
        (b"\x04", ("reject", "")),
        (b"too much\n", ("reject", "too much")),
    ],
)
async def test_a_line_decides_the_call_that_waits(keyboard, typed, decision) -> None:
    agent = Agent()
    lines, screen = opened(agent, steers=False)
    lines.note(asked("c1"))
    assert screen.lines == [
        '? pay(n="c1") (c1): make this call? [y]es, [n]o, or why not: ',
    ]
    os.write(keyboard, typed)
    await soon(lambda: agent.sent)
    assert agent.sent == [("r", "c1", "approval", *decision)]
    lines.close()


async def test_a_call_of_the_callers_tool_is_not_asked_about(keyboard) -> None:
    agent = Agent()
    lines, screen = opened(agent)
    lines.note(question("c1", "caller_tool"))
    os.write(keyboard, b"hurry\n")
    await soon(lambda: agent.sent)
    assert agent.sent == [("r", "hurry", False)]
    assert screen.lines == []
    lines.close()


async def test_calls_are_asked_about_one_after_another(keyboard) -> None:
    agent = Agent()
    lines, screen = opened(agent)
    for call_id in ("c1", "c2", "c3"):
        lines.note(asked(call_id))
    lines.note(decided("c1"))  # by somebody else
    os.write(keyboard, b"y\nn\nand hurry\n")
    await soon(lambda: len(agent.sent) == 3)
    assert [line[:11] for line in screen.lines] == ['? pay(n="c1', '? pay(n="c2', '? pay(n="c3']
    assert agent.sent == [
        ("r", "c2", "approval", "approve", ""),
        ("r", "c3", "approval", "reject", ""),
        ("r", "and hurry", False),
    ]
    lines.close()


async def test_lines_answer_the_fields_of_a_question_one_after_another(keyboard) -> None:
    agent = Agent()
    lines, screen = opened(agent)
    lines.note(question("c1"))
    lines.note(question("c2"))
    lines.note(asked("c3"))
    os.write(keyboard, b"many\n3\n\n/decline\ny\nand hurry\n")
    await soon(lambda: len(agent.sent) == 4)
    assert screen.lines[:5] == [
        "  /decline refuses to answer, /cancel puts it off",
        "? n (whole number): ",
        "! type a whole number",
        "? n (whole number): ",
        "? m (whole number; optional): ",
    ]
    assert agent.sent == [
        ("r", "c1", "input", "accept", {"n": 3}),
        ("r", "c2", "input", "decline"),
        ("r", "c3", "approval", "approve", ""),
        ("r", "and hurry", False),
    ]
    lines.close()


async def test_ctrl_d_cancels_a_question_and_a_sign_in_ends_elsewhere(keyboard) -> None:
    agent = Agent()
    lines, screen = opened(agent, steers=False)
    lines.note(question("c1"))
    os.write(keyboard, b"\x04")
    await soon(lambda: agent.sent)
    assert agent.sent == [("r", "c1", "input", "cancel")]
    lines.note(question("c2", kind="sign_in"))
    assert screen.lines[-1].startswith("? sign in there, and this goes on")
    lines.note(Writer()("input_received", "accept", call_id="c2"))
    assert not lines._waiting
    lines.close()


async def test_a_question_after_ctrl_d_is_answered(keyboard) -> None:
    agent = Agent()
    lines, _ = opened(agent)
    os.write(keyboard, b"\x04")
    await asyncio.sleep(0.1)
    lines.note(asked("c1"))
    os.write(keyboard, b"n\n")
    await soon(lambda: agent.sent)
    lines.close()


async def test_a_line_that_the_agent_refuses_is_named(keyboard) -> None:
    lines, screen = opened(Agent(RunEnded()))
    os.write(keyboard, b"too late\n")
    await soon(lambda: screen.lines)
    assert screen.lines[0].startswith("! not sent: too late: the run has ended")
    lines.close()


async def test_lines_under_way_when_the_run_ends_are_named(keyboard) -> None:
    lines, screen = opened(Agent(delay=60))
    os.write(keyboard, b"to Rome\nor to Paris\n")
    await soon(lambda: len(lines._outgoing) == 2)
    await asyncio.sleep(0.05)
    lines.close()
    assert screen.lines == [
        "! the run may not have taken this: to Rome",
        "! not sent: or to Paris",
    ]


async def test_without_a_person_a_call_that_waits_is_an_end() -> None:
    lines = TypedLines(Agent(), Screen(), asks=False, steers=True)
    lines.open("r")
    with pytest.raises(InputRequired) as waiting:
        lines.note(asked("c1"))
    assert waiting.value.call_id == "c1"
    for kind, way in (
        ("form", "diptych answer run-1 c1 --at here FIELD=VALUE"),
        ("url", "open its link, then diptych answer run-1 c1 --at here"),
        ("sign_in", "sign in; diptych answer run-1 c1 --at here --cancel"),
    ):
        with pytest.raises(InputRequired) as waiting:
            lines.note(question("c1", kind))
        assert waiting.value.way("here").startswith(way)
    lines.close()
