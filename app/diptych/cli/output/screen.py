"""Writes an answer to stdout, and everything else about a run to stderr.

So an answer can be piped while a person watches. On a terminal, the last line may be a status that
the next line replaces; a file or pipe gets whole lines only.
"""

import errno
import os
import re
import sys
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeAlias

from rich.console import Console
from rich.text import Text

from diptych.net.redaction import SECRETS

if TYPE_CHECKING:
    from diptych.cli.output.markdown import MarkdownAnswer

REFRESH_SECONDS = 0.1
_MARGIN = "  │ "
_WORDS_AND_BLANKS = re.compile(r"\n|[^\S\n]+|\S+")
_CLEAR_LINE = "\r\x1b[2K"
_CONTROLS = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_PRINTABLE: dict[int, str | None] = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}")
_PRINTABLE |= {ord("\r"): None, ord("\t"): "\t", ord("\n"): "\n"}
_PIPE_WIDTH = 400
_TABLE_PIPE_WIDTH = 1_000

Part: TypeAlias = str | tuple[str, str]
"""A text, or a text with its style."""
Line: TypeAlias = tuple[Part, ...]


class Mark(Enum):
    """The first characters of a report's line, with their style."""

    OK = ("✓ ", "green")
    FAILED = ("✗ ", "red")
    NOTE = ("! ", "yellow")


def printable(text: str) -> str:
    """Replace control characters, and redact the secrets that this process has read.

    Models and tools must not command a person's terminal.
    """
    return SECRETS.redact(text.translate(_PRINTABLE))


def print_report(lines: Iterable[Line]) -> None:
    """Write lines to stdout without wrapping them."""
    console = _Console()
    for line in lines:
        console.print(_text(line), soft_wrap=True)


def stdout_width() -> int:
    """Return how many characters a line of a table on stdout may have."""
    console = _Console()
    return console.width if console.is_terminal else _TABLE_PIPE_WIDTH


def _text(parts: Iterable[Part]) -> Text:
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((printable(text), style) for text, style in pairs))


class _Console(Console):
    """Writes styled text as it is.

    A reader that has gone is an error, as it is to `write`: rich would exit, in any thread.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Screen:
    """Both streams of a command. It knows what stands in the last line, and ends that first."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = _Console(err or sys.stderr)
        self._answers_on_terminal = self._out.isatty()
        self._markdown: MarkdownAnswer | None = None
        self.is_live = self._err.file.isatty() and not self._err.is_dumb_terminal
        self._has_open_answer = False
        self._has_status = False
        self._quote_column = 0  # 0 where no line of a quote is open
        self._buffered_quote: list[str] = []  # of a pipe, which gets it as one line

    @property
    def width(self) -> int:
        """Characters in a line of stderr."""
        return self._err.width if self.is_live else _PIPE_WIDTH

    def print_line(self, *parts: Part) -> None:
        """Write one line to stderr."""
        self._end_last_line()
        self._print(_text(parts), end="\n")

    def print_gap(self) -> None:
        """Write an empty line, on a terminal only."""
        if self.is_live:
            self.print_line()

    def write_answer(self, text: str) -> None:
        """Write the next piece of the answer to stdout; a terminal shows its markdown."""
        if not self._has_open_answer:
            self._end_last_line()
        if self._answers_on_terminal:
            if self._markdown is None:
                self._markdown = self._open_markdown()
            self._markdown.write(printable(text))
            self._has_open_answer = True
        else:
            self._out.write(text)
            self._out.flush()
            self._has_open_answer = not text.endswith("\n")

    def end_answer(self) -> None:
        """End the last line of the answer."""
        if self._answers_on_terminal:
            self._end_last_line()
            self._markdown = None
        elif self._has_open_answer:
            self.write_answer("\n")

    def _open_markdown(self) -> "MarkdownAnswer":
        from diptych.cli.output.markdown import MarkdownAnswer

        return MarkdownAnswer(_Console(self._out))

    def write_quote(self, text: str) -> None:
        """Write the next piece of a text behind a margin, dimmed and wrapped."""
        if not self.is_live:
            self._buffered_quote.append(text)
            return
        if self._quote_column == 0:
            self._end_last_line()
        pieces = map(self._wrapped, _WORDS_AND_BLANKS.findall(printable(text)))
        self._print(Text("".join(pieces), "dim"), end="")

    def end_quote(self) -> None:
        """End the text behind the margin."""
        if self._buffered_quote:
            text = " ".join("".join(self._buffered_quote).split())
            self._buffered_quote.clear()
            self.print_line((_MARGIN + text, "dim"))
        self._end_last_line()

    def show_status(self, text: str) -> None:
        """Show a line that the next output replaces, on a terminal only."""
        if not self.is_live or self._has_open_answer or self._quote_column:
            return
        self._err.file.write(_CLEAR_LINE)
        self._print(Text(printable(text)[: self.width - 1], "dim"), end="")
        self._has_status = True

    def show_prompt(self, text: str) -> None:
        """Ask for a line, which is typed behind the text."""
        self._end_last_line()
        self._print(Text(printable(text), "bold"), end="")

    def _end_last_line(self) -> None:
        """Move the cursor to the start of an empty line."""
        if self._has_status:
            self._err.file.write(_CLEAR_LINE)
            self._has_status = False
        if self._markdown and self._has_open_answer:
            self._markdown.end()
            self._has_open_answer = False
        if self._quote_column:
            self._print(Text(""), end="\n")
            self._quote_column = 0

    def _wrapped(self, piece: str) -> str:
        """Return a word, blanks or a line break as it is written behind the margin."""
        line_break = ""
        if self._quote_column and (piece == "\n" or self._quote_column + len(piece) >= self.width):
            line_break, self._quote_column = "\n", 0
        if self._quote_column == 0:
            if piece.isspace():
                return line_break
            piece = _MARGIN + piece
        self._quote_column += len(piece)
        return line_break + piece

    def _print(self, text: Text, end: str) -> None:
        self._err.print(text, end=end, soft_wrap=True)
