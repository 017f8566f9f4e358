"""Detects text that repeats without end (loop.md §12), as from a stuck model."""

_TIMES = 5
_LENGTH = 200  # characters that must repeat
_LONGEST = 4000  # characters of a repeated unit
_REACH = _TIMES * _LONGEST + _LENGTH


def repetition_end(text: str) -> int | None:
    """Return the offset at which to cut a repeating text, or None.

    A text repeats if a unit of at most 4,000 characters occurs five times in a row, or, if it is
    shorter than 200 characters, often enough to fill 200 characters five times. Only multiples of
    200 are checked. The time is linear.
    """
    for end in range(_LENGTH * _TIMES, len(text) + 1, _LENGTH):
        if _repeats(text, end):
            return end
    return None


class RepetitionFilter:
    """Cuts a stream at the same offset as `repetition_end`, however it is split."""

    def __init__(self) -> None:
        self.is_cut = False
        self._tail = ""  # the end of the text, as far as a repetition may reach back
        self._new: list[str] = []  # pieces since the last check
        self._left = _LENGTH  # characters until the next check

    def feed(self, piece: str) -> str:
        """Take the next piece; return the part before the cut, and "" after it."""
        if self.is_cut:
            return ""
        self._new.append(piece)
        self._left -= len(piece)
        if self._left > 0:
            return piece
        text = "".join((self._tail, *self._new))
        known = len(text) - len(piece)
        first = len(text) + self._left
        self._left = _LENGTH - (len(text) - first) % _LENGTH
        for end in range(first, len(text) + 1, _LENGTH):
            if _repeats(text, end):
                self.is_cut = True
                return text[known:end]
        self._tail, self._new = text[-_REACH:], []
        return piece


def _repeats(text: str, end: int) -> bool:
    """Whether the text before `end` ends in a unit that occurs five times."""
    near = text[max(0, end - _LENGTH - _LONGEST) : end][::-1]
    unit = near.find(near[:_LENGTH], 1)  # reversed: the nearest earlier occurrence
    if unit < 0:
        return False
    length = -(-_LENGTH // unit) * unit
    start = end - _TIMES * length
    return start >= 0 and text[start : end - unit] == text[start + unit : end]
