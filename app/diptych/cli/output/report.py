"""Lines of a report on stdout: styled for a terminal, plain in a pipe.

Not here: what a run says while it happens (`screen`).
"""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from diptych.cli.output.screen import Part, printable

_WELL, _ILL, _SO_SO = ("✓ ", "green"), ("✗ ", "red"), ("! ", "yellow")
MARKS: dict[bool | None, Part] = {True: _WELL, False: _ILL, None: _SO_SO}
"""Signs for what is well, is not, or should be known."""


def print_sheet(lines: Iterable[tuple[Part, ...]]) -> None:
    """Write the lines; none is broken in two by us."""
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        safe = (
            printable(part) if isinstance(part, str) else (printable(part[0]), part[1])
            for part in line
        )
        console.print(Text.assemble(*safe), soft_wrap=True)
