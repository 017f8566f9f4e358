"""Finds text that repeats itself without end (loop.md §12), as a stuck model writes it."""

_TIMES = 5
_LENGTH = 200  # characters that must be the same
_LONGEST = 4000  # characters of a unit that is repeated
_REACH = _TIMES * _LONGEST + _LENGTH


def repetition_end(text: str) -> int | None:
    """Return the offset at which a text that repeats itself is to be cut, or None.

    It repeats itself where a unit of at most 4,000 characters follows on itself, so that the same
    200 characters or more stand there five times over, side by side. What is looked at are
    multiples of 200 characters: the offset is one. Takes time in proportion to the length.
    """
    for end in range(_LENGTH * _TIMES, len(text) + 1, _LENGTH):
        if _repeats(text, end):
            return end
    return None


class RepetitionFilter:
    """Cuts a stream where `repetition_end` cuts the whole, however it is parted in pieces."""

    def __init__(self) -> None:
        self.is_cut = False
        self._tail = ""  # of the text, as far as a repetition may reach back
        self._new: list[str] = []  # pieces after the last place that was looked at
        self._left = _LENGTH  # characters until the next such place

    def feed(self, piece: str) -> str:
        """Take the next piece, and give what of it comes before the cut; then nothing more."""
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
    """Whether the text before `end` is a unit that is repeated five times."""
    near = text[max(0, end - _LENGTH - _LONGEST) : end][::-1]
    unit = near.find(near[:_LENGTH], 1)  # backwards: the nearest place with the same text
    if unit < 0:
        return False
    length = -(-_LENGTH // unit) * unit
    start = end - _TIMES * length
    return start >= 0 and text[start : end - unit] == text[start + unit : end]
