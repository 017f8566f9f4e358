"""Where output goes, and what stands in the last line of a terminal."""

import io
import re

import pytest

from diptych.cli.output.screen import Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was written, without bold and dim."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())

    @property
    def shown(self) -> list[str]:
        """Its lines as a person sees them, after movements of the cursor."""
        lines, row = [""], 0
        moves = re.compile(r"\x1b\[([0-9?]*)([A-Za-z])|(\n)|(\r)|([^\x1b\n\r]+)")
        for count, move, is_down, is_start, text in moves.findall(self.text):
            row += bool(is_down) - (int(count or 1) if move == "A" else 0)
            lines += [""] * (row + 1 - len(lines))
            if move == "K" or is_start:
                lines[row] = ""
            lines[row] += text
        return [line.rstrip() for line in lines]


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_the_answer_alone_goes_to_stdout() -> None:
    out, err = io.StringIO(), io.StringIO()
    screen = Screen(out, err)
    screen.print_line("a step")
    screen.print_gap()
    screen.show_status("not shown in a pipe")
    screen.write_answer("An ")
    screen.write_answer("answer")
    screen.end_answer()
    screen.print_line("the end")
    assert out.getvalue() == "An answer\n"
    assert err.getvalue() == "a step\nthe end\n"


def test_a_pipe_gets_the_answer_as_it_is() -> None:
    out = io.StringIO()
    Screen(out, Terminal()).write_answer("\x1b[31mred\x07")
    assert out.getvalue() == "\x1b[31mred\x07"


def test_what_a_model_writes_cannot_command_the_terminal() -> None:
    out, err = Terminal(), Terminal()
    screen = Screen(out, err)
    screen.write_answer("\x1b]0;title\x07 one\r\ntwo\u202e\n")
    screen.write_quote("\x1b[2J")
    screen.end_quote()
    screen.print_line("\x1b[2J", ("\x9b2J", "red"))
    screen.end_answer()
    assert out.shown == [line.replace("?", "\ufffd") for line in ("?]0;title? one", "two?", "")]
    assert "\x1b[2J" not in err.getvalue()
    assert "\x9b" not in err.getvalue()


def test_a_line_interrupts_an_answer_on_the_next_line() -> None:
    terminal = Terminal()
    screen = Screen(terminal, terminal)
    screen.write_answer("half an ans")
    screen.print_line("✗ failed")
    assert terminal.shown == ["half an ans", "✗ failed", ""]
    screen.write_answer("the rest")
    screen.end_answer()
    assert terminal.shown[-2:] == ["the rest", ""]


MARKDOWN = """\
A **bold** word,
`code` and a [link](http://a).

1. one

2. two

```python
# no **bold**

pass
```

The end.
"""


@pytest.mark.parametrize("size", [1, 7, len(MARKDOWN)])
def test_a_terminal_shows_markdown_whatever_its_pieces(size: int) -> None:
    terminal = Terminal()
    screen = Screen(terminal, terminal)
    for start in range(0, len(MARKDOWN), size):
        screen.write_answer(MARKDOWN[start : start + size])
    screen.end_answer()
    assert [line for line in terminal.shown if line] == [
        "A bold word,",
        "code and a link (http://a).",
        " 1 one",
        " 2 two",
        " # no **bold**",
        " pass",
        "The end.",
    ]


def test_a_status_is_replaced_by_the_next_line() -> None:
    terminal = Terminal()
    screen = Screen(Terminal(), terminal)
    screen.show_status("waiting for the model, as long as it takes")
    screen.print_line("a step")
    *_, last = terminal.text.split("\r\x1b[2K")
    assert last == "a step\n"
    assert all(len(shown) < 30 for shown in terminal.text.split("\r\x1b[2K"))


def test_a_quote_is_wrapped_behind_its_margin() -> None:
    terminal = Terminal()
    screen = Screen(Terminal(), terminal)
    for piece in ("Mars is ", "228 million km ", "from the ", "Sun.\nReally", "."):
        screen.write_quote(piece)
    screen.end_quote()
    assert terminal.text == "  │ Mars is 228 million km \n  │ from the Sun.\n  │ Really.\n"


def test_a_quote_is_one_line_in_a_pipe() -> None:
    err = io.StringIO()
    screen = Screen(io.StringIO(), err)
    for piece in ("Mars is ", "228 million km\n", "away"):
        screen.write_quote(piece)
    screen.end_quote()
    assert err.getvalue() == "  │ Mars is 228 million km away\n"
