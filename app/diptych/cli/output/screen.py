"""Where output goes: the answer to stdout and nothing else, what happens meanwhile to stderr.

So an answer can be piped while a person watches. On a terminal a last line may come and go; in a
file or pipe all is whole lines.

Not here: what is said (`show`).
"""

import re
import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

_MARGIN = "  │ "
_PIECES = re.compile(r"\n|[^\S\n]+|\S+")
_CLEAR_LINE = "\r\x1b[2K"
_CONTROLS = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS: dict[int, str | None] = dict.fromkeys(_CONTROLS, "\N{REPLACEMENT CHARACTER}")
_HARMLESS |= {ord("\r"): None, ord("\t"): "\t", ord("\n"): "\n"}

Part = str | tuple[str, str]
"""Text, or text and its style."""


def printable(text: str) -> str:
    """Take out what would move the cursor or recolour a terminal: models and tools wrote it."""
    return text.translate(_HARMLESS)


class Screen:
    """One place for all output, that knows what stands in the last line."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = Console(file=err or sys.stderr, highlight=False, markup=False, emoji=False)
        self._answers_on_terminal = self._out.isatty()
        self.is_live = self._err.file.isatty() and not self._err.is_dumb_terminal
        self._answer_is_open = False
        self._transient = False
        self._column = 0  # in the murmured line, 0 while there is none
        self._murmured: list[str] = []  # where no terminal is: kept until its end

    @property
    def width(self) -> int:
        """How many characters one line holds; much, where nobody looks."""
        return self._err.width if self.is_live else 400

    def line(self, *parts: Part) -> None:
        """Say something in a line of its own."""
        self._break()
        self._print(Text.assemble(*_safe(parts)), end="\n")

    def gap(self) -> None:
        """Leave a line empty where a person reads."""
        if self.is_live:
            self.line()

    def answer(self, text: str) -> None:
        """Give the next piece of the answer."""
        if not self._answer_is_open:
            self._break()
        self._out.write(printable(text) if self._answers_on_terminal else text)
        self._out.flush()
        self._answer_is_open = not text.endswith("\n")

    def end_answer(self) -> None:
        """End the answer's last line."""
        if self._answer_is_open:
            self.answer("\n")

    def murmur(self, text: str) -> None:
        """Give the next piece of what is said in the background, in the margin."""
        if not self.is_live:
            self._murmured.append(text)
            return
        if self._column == 0:
            self._break()
        laid_out = "".join(map(self._laid_out, _PIECES.findall(printable(text))))
        self._print(Text(laid_out, "dim"), end="")

    def end_murmur(self) -> None:
        """End what is said in the background."""
        if self._murmured:
            text = " ".join("".join(self._murmured).split())
            self._murmured.clear()
            self.line((_MARGIN + text, "dim"))
        self._break()

    def transient(self, text: str) -> None:
        """Show a line that the next one replaces; only where a person sees it."""
        if not self.is_live or self._answer_is_open or self._column:
            return
        self._err.file.write(_CLEAR_LINE)
        self._print(Text(printable(text)[: self.width - 1], "dim"), end="")
        self._transient = True

    def _break(self) -> None:
        """Make the cursor stand at the start of an empty line."""
        if self._transient:
            self._err.file.write(_CLEAR_LINE)
            self._transient = False
        if self._answer_is_open and self._answers_on_terminal:
            self._out.write("\n")
            self._out.flush()
            self._answer_is_open = False
        if self._column:
            self._print(Text(""), end="\n")
            self._column = 0

    def _laid_out(self, piece: str) -> str:
        """Put a word, blanks or a line's end into the margin's column, and note where it ends."""
        line_end = ""
        if self._column and (piece == "\n" or self._column + len(piece) >= self.width):
            line_end, self._column = "\n", 0
        if self._column == 0:
            if piece.isspace():
                return line_end
            piece = _MARGIN + piece
        self._column += len(piece)
        return line_end + piece

    def _print(self, text: Text, end: str) -> None:
        self._err.print(text, end=end, soft_wrap=True)


def _safe(parts: tuple[Part, ...]) -> list[Part]:
    return [
        printable(part) if isinstance(part, str) else (printable(part[0]), part[1])
        for part in parts
    ]
