"""The text of an answer on its way to the record: merged in time, and compared with what was told.

Not here: asking for it (`outgoing`), and recording it (`runner`).
"""

import asyncio
from collections import deque
from collections.abc import Callable

TEXT_INTERVAL = 0.025  # seconds in which pieces of the answer are merged into one event


class TextBatcher:
    """What has arrived of an answer and is not yet on record.

    The first piece is due at once, later ones together, at most one batch each 25 ms
    (loop.md §9). `due` is called when there is a batch to take.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._texts: deque[str] = deque()
        self._is_due = False
        self._next_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> None:
        if not text:
            return
        self._texts.append(text)
        if self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_at:
            self._due()
        else:
            loop.call_at(self._next_at, self._due)

    def take(self) -> str:
        """Give all that has arrived, and begin the next batch."""
        self._is_due = False
        text = "".join(self._texts)
        if text:
            self._texts.clear()
            self._next_at = asyncio.get_running_loop().time() + TEXT_INTERVAL
        return text


class AnswerReplay:
    """An answer that is asked for again, against what was told of it before (loop.md §9).

    As long as the new text equals the old, nothing is told twice. At the first difference, or if
    the new text is shorter, `differs` is called once, and the new text is told from its start.
    """

    def __init__(self, told: str, differs: Callable[[], None]) -> None:
        self._told = told
        self._differs = differs
        self._at = 0  # up to where in `told` the new text has come, and equals it
        self._is_open = bool(told)

    def unheard(self, text: str) -> str:
        """Give what is to be told of a piece."""
        if not self._is_open:
            return text
        expected = self._told[self._at : self._at + len(text)]
        if not text.startswith(expected):
            return self.rest() + text
        self._at += len(expected)
        self._is_open = self._at < len(self._told)
        return text[len(expected) :]

    def rest(self) -> str:
        """Give what is to be told now that the new text has ended or differs."""
        if not self._is_open:
            return ""
        self._is_open = False
        self._differs()
        return self._told[: self._at]
