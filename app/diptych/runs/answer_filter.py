"""Filters a streamed reply, from the model's pieces to the text for subscribers.

split reasoning -> cut endless repetition -> hold back possible actions
  -> compare with logged text (AnswerReplay) -> `inbox.TextBatcher`
"""

from collections.abc import Callable

from diptych.core.answer_gate import AnswerGate
from diptych.core.reading import ReasoningSplitter, RepetitionFilter
from diptych.core.reading.leading_reasoning import Split
from diptych.runs.inbox import TextBatcher


class AnswerFilter:
    """Filters one streamed reply. `recorded` is its logged text, if it is requested again.

    `new_gate` makes the gate; None holds all text to the end. `on_reasoning` receives reasoning as
    it streams. `opens_reasoning`: the prompt has opened the reasoning, so the reply begins inside
    it; `began_in_reasoning` says afterwards whether that was true.
    """

    def __init__(
        self,
        batcher: TextBatcher,
        recorded: str,
        new_gate: Callable[[], AnswerGate] | None,
        on_reasoning: Callable[[str], None],
        *,
        opens_reasoning: bool = False,
    ) -> None:
        self._batcher = batcher
        self._new_gate = new_gate
        self._gate = new_gate() if new_gate else None
        self._replay = AnswerReplay(recorded, batcher.void)
        self._on_reasoning = on_reasoning
        self._splitter = ReasoningSplitter(opened=opens_reasoning)
        self.began_in_reasoning = False
        self._text_cut, self._reasoning_cut = RepetitionFilter(), RepetitionFilter()
        self._all_held: list[str] = []  # without a gate
        self._has_flowed = False

    @property
    def is_cut(self) -> bool:
        """Whether the model repeats itself, so that there is no point in reading on."""
        return self._text_cut.is_cut or self._reasoning_cut.is_cut

    def feed(self, text: str, reasoning: str = "") -> None:
        """Take a piece of the reply, and of reasoning in a field of its own."""
        self._reason(reasoning)
        if text:
            self._take(self._splitter.feed(text))

    def finish(self) -> str:
        """Release the rest of the text; return the held text for the reducer to judge."""
        if not self.is_cut:
            self._take(self._splitter.finish())
        self.began_in_reasoning |= self._splitter.closed_first
        held = self._gate.finish() if self._gate else "".join(self._all_held)
        self._batcher.add(self._replay.finish())
        return held

    def _take(self, split: Split) -> None:
        if split.is_void:
            self.began_in_reasoning = True
            self._void()
        self._reason(split.reasoning)
        text = self._text_cut.feed(split.text)
        if self._gate is None:
            self._all_held.append(text)
        elif released := self._gate.feed(text):
            self._has_flowed = True
            self._batcher.add(self._replay.new_text(released))

    def _void(self) -> None:
        """Take back all text so far: it was reasoning that the template had opened."""
        self._gate = self._new_gate() if self._new_gate else None
        self._all_held.clear()
        self._text_cut = RepetitionFilter()
        if self._has_flowed:
            self._has_flowed = False
            self._replay = AnswerReplay("", self._batcher.void)
            self._batcher.void()

    def _reason(self, reasoning: str) -> None:
        if reasoning and not self._reasoning_cut.is_cut:
            self._on_reasoning(self._reasoning_cut.feed(reasoning))


class AnswerReplay:
    """Compares an answer that is requested again with its logged text (loop.md §9).

    While both are equal, no text is passed on. At the first difference, or if the new text is
    shorter, `on_difference` is called once and the new text is passed on from its start.
    """

    def __init__(self, recorded: str, on_difference: Callable[[], None]) -> None:
        self._recorded = recorded
        self._on_difference = on_difference
        self._position = 0  # in `recorded`; the new text is equal up to here
        self._is_comparing = bool(recorded)

    def new_text(self, piece: str) -> str:
        """Return the part of a piece that is not logged yet."""
        if not self._is_comparing:
            return piece
        expected = self._recorded[self._position : self._position + len(piece)]
        if not piece.startswith(expected):
            return self.finish() + piece
        self._position += len(expected)
        self._is_comparing = self._position < len(self._recorded)
        return piece[len(expected) :]

    def finish(self) -> str:
        """Return the text to pass on again because the new text has ended or differs."""
        if not self._is_comparing:
            return ""
        self._is_comparing = False
        self._on_difference()
        return self._recorded[: self._position]
