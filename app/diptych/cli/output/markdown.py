"""Renders an answer's markdown on a terminal, block by block, as it arrives."""

import re

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

_BLOCK_END = re.compile(r"\n[ \t]*\n\s*(?=[^\s\d*+>|-])")
"""A blank line, unless what follows may continue a list, a quote or a table."""
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


class MarkdownAnswer:
    """One answer. The block that is being written is drawn again with each piece."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._block = ""
        self._drawn: Live | None = None

    def write(self, text: str) -> None:
        self._block += text
        while end := self._end_of_block():
            block, self._block = self._block[: end.start()], self._block[end.end() :]
            self._draw(block)
            self._close()
            self._console.line()
        self._draw(self._block)

    def end(self) -> None:
        """Leave the cursor below what is drawn. More text begins another block."""
        self._close()
        self._block = ""

    def _close(self) -> None:
        if self._drawn:
            self._drawn.stop()
            self._drawn = None

    def _draw(self, block: str) -> None:
        if not block.strip():
            return
        if self._drawn is None:
            self._drawn = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._drawn.start()
            self._console.show_cursor()  # it would stay hidden if the process were killed
        # The address of a link is shown, and a line break is kept, which markdown would not.
        markdown = Markdown(_with_breaks(block), code_theme="ansi_dark", hyperlinks=False)
        self._drawn.update(markdown, refresh=True)

    def _end_of_block(self) -> re.Match[str] | None:
        for end in _BLOCK_END.finditer(self._block):
            if len(_FENCE.findall(self._block, 0, end.start())) % 2 == 0:
                return end
        return None


def _with_breaks(block: str) -> str:
    """Mark the line breaks outside of code as hard ones."""
    lines, in_code = [], False
    for line in block.split("\n"):
        in_code ^= bool(_FENCE.match(line))
        lines.append(line if in_code else f"{line}  ")
    return "\n".join(lines)
