"""The text of an answer between the model and the record.

Not here: asking for it (`model_caller`), what of a reply is text that may be told
(`answer_stream`), recording it (`runner`).
"""

import asyncio
from collections import deque
from collections.abc import Callable

TEXT_INTERVAL = 0.025  # seconds in which pieces of an answer are merged into one event (loop.md §9)


class TextBatcher:
    """Merges pieces of an answer: the first is due at once, later ones in batches of 25 ms.

    `on_due` is called when there is a batch to take.
    """

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._pieces: deque[str] = deque()
        self._is_void = False
        self._is_due = False
        self._next_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._pieces) or self._is_void

    def add(self, text: str) -> None:
        if not text:
            return
        self._pieces.append(text)
        self._call_when_due()

    def void(self) -> None:
        """Drop what has not been taken; `take` says that all text before is void."""
        self._pieces.clear()
        self._is_void = True
        self._call_when_due()

    def take(self) -> tuple[bool, str]:
        """Give all text that has arrived, and begin the next batch.

        The first value says that all text before it is void.
        """
        self._is_due = False
        text, is_void = "".join(self._pieces), self._is_void
        self._is_void = False
        if text or is_void:
            self._pieces.clear()
            self._next_at = asyncio.get_running_loop().time() + TEXT_INTERVAL
        return is_void, text

    def _call_when_due(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_at:
            self._on_due()
        else:
            loop.call_at(self._next_at, self._on_due)


class AnswerReplay:
    """Compares an answer that is asked for again with the text on record (loop.md §9).

    As long as both are equal, nothing is passed on. At the first difference, or when the new text
    turns out shorter, `on_difference` is called once and the new text is passed on from its start.
    """

    def __init__(self, recorded: str, on_difference: Callable[[], None]) -> None:
        self._recorded = recorded
        self._on_difference = on_difference
        self._position = 0  # in `recorded`, up to which the new text is equal
        self._is_comparing = bool(recorded)

    def new_text(self, piece: str) -> str:
        """Give what is new of a piece."""
        if not self._is_comparing:
            return piece
        expected = self._recorded[self._position : self._position + len(piece)]
        if not piece.startswith(expected):
            return self.finish() + piece
        self._position += len(expected)
        self._is_comparing = self._position < len(self._recorded)
        return piece[len(expected) :]

    def finish(self) -> str:
        """Give what is to be passed on again, now that the new text has ended or differs."""
        if not self._is_comparing:
            return ""
        self._is_comparing = False
        self._on_difference()
        return self._recorded[: self._position]
