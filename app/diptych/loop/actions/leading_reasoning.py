"""Takes a leading `<think>…</think>` off a reply that arrives in pieces.

Not here: the same for a whole reply (`extraction.strip_lead`).
"""

from diptych.loop.actions.extraction import strip_lead

_BLANKS = "\ufeff \t\r\n"


class ReasoningFilter:
    """Separates a leading byte order mark and `<think>…</think>` from a stream (loop.md §3).

    Blank text is held back until other text follows, so that a blank answer is never shown.
    `is_open` says that the text proper has not begun.
    """

    OPENING, CLOSING = "<think>", "</think>"

    def __init__(self) -> None:
        self.is_open = True
        self.reasoning = ""
        self._held = ""
        self._thoughts: list[str] = []  # the pieces of a `<think>` that is still open

    def feed(self, text: str) -> str:
        """Take the next piece, and give the text that certainly belongs to the answer."""
        if self._thoughts:
            self._thoughts.append(text)
            if self.CLOSING not in "".join(self._thoughts[-len(self.CLOSING) :]):
                return ""  # each piece is scanned a few times only, however long the reasoning
            text = "".join(self._thoughts)
            self._thoughts.clear()
        self._held += text
        left = strip_lead(self._held)[0].lstrip(_BLANKS)
        if self.OPENING.startswith(left):  # also if it is blank, as while a `<think>` is open
            if self._held.rfind(self.OPENING) > self._held.rfind(self.CLOSING):
                self._thoughts, self._held = [self._held], ""
            return ""
        return self.finish()

    def finish(self) -> str:
        """Give the text that is still held back, at the end of the stream."""
        self.is_open = False
        text, self.reasoning = strip_lead("".join(self._thoughts) + self._held)
        self._held = ""
        return text if text.strip() else ""
