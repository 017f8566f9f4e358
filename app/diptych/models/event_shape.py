"""Takes the text out of events that differ from an earlier one in nothing but their text.

Nearly all events of a streamed reply are such, and there is one for each token; to see that, and
to take the text, costs less than to parse the event (docs/performance.md).

Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import orjson

_OPENINGS = (b'"content":"', b'"content": "')  # as compact and as spaced JSON have it
_PROBE = "another text"
_TRIES = 4  # shapes in a row that no other event had: then none is learnt again

TextAlone: TypeAlias = Callable[[Mapping[str, Any]], str]
"""Gives the text of a decoded event that has nothing else; of others none."""


class EventShape:
    """The bytes before and after the text of an event that was decoded.

    Bytes that have both hold the same JSON around another text, if what is between is the inside
    of one JSON string: it cannot end that string earlier, and what follows reads as before.
    """

    def __init__(self) -> None:
        self._before = b""  # up to the quote that opens the text
        self._after = b""  # from the quote that closes it
        self._opens_at = self._closes_at = 0  # where both stand, from the start and from the end
        self._tries = 0  # shapes in a row, up to this one, that no other event had

    def text_of(self, event: bytes) -> str:
        """Give the text of an event with this shape; of others none."""
        before = self._before
        if not (before and event.startswith(before) and event.endswith(self._after)):
            return ""
        try:
            text: str = orjson.loads(event[self._opens_at : self._closes_at])
        except orjson.JSONDecodeError:  # half a character, or two ends that overlap
            return ""
        self._tries = 0
        return text

    def learn(self, event: bytes, said: str, text_alone: TextAlone) -> None:
        """Take the shape of an event that says this alone, in place of the former one.

        Where each event has another shape, that is given up for the rest of the reply.
        """
        self.forget()
        if self._tries == _TRIES or said == _PROBE:  # which no probe would tell apart
            return
        for opening in _OPENINGS:
            before, found, rest = event.partition(opening)
            text, _, _ = rest.partition(b'"')
            if found and b"\\" not in text:
                self._take(before + found, rest[len(text) :], text_alone)

    def forget(self) -> None:
        """Have no shape: what it was learnt of does not hold any more."""
        self._before = b""

    def _take(self, before: bytes, after: bytes, text_alone: TextAlone) -> None:
        """Take a shape, if another text in it is decoded as just that."""
        self._tries += 1
        try:
            is_read = text_alone(orjson.loads(before + _PROBE.encode() + after)) == _PROBE
        except orjson.JSONDecodeError:
            is_read = False
        self._before, self._after = (before, after) if is_read else (b"", b"")
        self._opens_at, self._closes_at = len(before) - 1, 1 - len(after)
