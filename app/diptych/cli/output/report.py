"""Prints a report to stdout: styled on a terminal, plain in a pipe."""

from collections.abc import Iterable

from rich.text import Text

from diptych.cli.output.screen import Line, StyledStream, printable_parts


def print_report(lines: Iterable[Line]) -> None:
    """Write the lines without wrapping them."""
    console = StyledStream()
    for line in lines:
        console.print(Text.assemble(*printable_parts(line)), soft_wrap=True)
