"""What models put before what they say: a byte order mark, blanks, `<think>…</think>`.

For a reply that comes in pieces; `reading.strip_lead` is for a whole one.
"""

from diptych.loop.actions.extraction import strip_lead

_BLANKS = "\ufeff \t\r\n"


class Lead:
    """Takes a byte order mark and a leading `<think>…</think>` off a stream (loop.md §3).

    Blank text is held back until something else follows, so that a blank answer is never told.
    """

    OPENING, CLOSING = "<think>", "</think>"

    def __init__(self) -> None:
        self.is_open = True
        self.reasoning = ""
        self._held = ""
        self._thoughts: list[str] = []  # what has come of a `<think>` that is still open

    def strip(self, text: str) -> str:
        """Take the next piece, and give what is certain to belong to the answer."""
        if self._thoughts:
            self._thoughts.append(text)
            if self.CLOSING not in "".join(self._thoughts[-len(self.CLOSING) :]):
                return ""  # each piece is looked at a few times, however long the model thinks
            text = "".join(self._thoughts)
            self._thoughts.clear()
        self._held += text
        left = strip_lead(self._held)[0].lstrip(_BLANKS)
        if self.OPENING.startswith(left):  # also if it is blank, as while a `<think>` is open
            if self._held.rfind(self.OPENING) > self._held.rfind(self.CLOSING):
                self._thoughts, self._held = [self._held], ""
            return ""
        return self.rest()

    def rest(self) -> str:
        """Give what is still held back, at the end of the stream."""
        self.is_open = False
        text, self.reasoning = strip_lead("".join(self._thoughts) + self._held)
        self._held = ""
        if self.reasoning:
            text = text.lstrip()
        return text if text.strip() else ""
