"""Questions of tools at the command line: `run` asks the person, and other terminals answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.asking import FORM, PAGE, ask_in_calls
from support.command_line import at_a_terminal, diptych
from support.stack import agent, box, call

from diptych.serve.process import ListenAddress, Sockets, serve_agents

pytestmark = pytest.mark.timeout(300)


async def book() -> str:
    """Book a trip."""
    return ""


@asynccontextmanager
async def office() -> AsyncIterator[str]:
    """Serve an agent whose tool asks; gives its URL."""
    config = agent(call("book"), "{}", "That is that.", tools=(box(book),))
    sockets = Sockets(ListenAddress(port=0), 1)
    async with serve_agents([config], sockets) as sites:
        await sites[0].wait_for_first_connect()
        yield sockets.urls[0]


async def test_without_a_terminal_run_exits_with_4_and_another_command_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask_in_calls(monkeypatch, FORM, PAGE)
    async with office() as url:
        code, out, err = await diptych("run", url, "book")
        assert (code, out) == (4, "")
        assert "waits for an answer: diptych answer" in " ".join(err.split())
        code, out, _ = await diptych("inputs", url)
        assert "Who travels? · fields: name, mail, seat, count, gift, meals" in out
        run_id, call_id, *_ = out.split()
        code, _, err = await diptych("answer", run_id, call_id, "--at", url, "name=Ada", "count=x")
        assert code == 2
        assert "count: type a whole number" in err
        answer = ("answer", run_id, call_id, "--at", url)
        code, _, err = await diptych(*answer, "name=Ada", "count=2", "meals=soup,cake")
        assert (code, err) == (0, "call_1_1: accept\n")
        code, out, _ = await diptych("inputs", url)
        page = "it asks you to open a page of pay.example.com, if you trust it: https://pay"
        assert f"Pay for it. · {page}" in out
        code, _, err = await diptych(*answer, "--decline")
        assert (code, err) == (0, "call_1_1: decline\n")
        code, out, err = await diptych("attach", run_id, "--at", url)
        assert (code, out) == (0, "That is that.\n")
        assert "meals" in err
        code, _, err = await diptych(*answer, "--cancel")
        assert code == 1
        assert "409" in err
        code, out, err = await diptych("inputs", url)
        assert (code, out, err) == (0, "", "no question that you may see waits for an answer\n")


async def test_at_a_terminal_run_asks_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_in_calls(monkeypatch, FORM, PAGE)
    async with office() as url:
        answers = {
            "? Your name: ": "Ada",
            "? mail (for the ticket; email; optional): ": "",
            "? seat (1 Window, 2 Aisle; optional) [a]: ": "1",
            "? count (whole number): ": "12",
            "maximum of 9": "2",
            "? gift (yes or no; optional): ": "y",
            "? meals (1 soup, 2 cake; several by commas; optional): ": "cake",
            "? open it and press Enter": "",
        }
        code, seen = await at_a_terminal(answers, "run", url, "book")
        assert code == 0, seen
        assert "That is that." in seen
        assert '"seat": "w", "count": 2, "gift": true, "meals": ["cake"]' in seen
