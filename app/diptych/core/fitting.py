"""Selects and shortens messages to fit the model's context window (loop.md §11).

The log keeps everything. What is sent shrinks in stages: no text takes more than a quarter of the
window; above 75 % of it, the oldest results become excerpts; then a summary replaces old messages,
and until it exists the newest are shortened too. The system prompt, the first user message, the
current question and the last six messages are always sent, and a call always comes with its result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from diptych.core import prompt
from diptych.core.excerpts import shortened
from diptych.core.messages import Message
from diptych.core.state import Run, conversation
from diptych.core.tokens import message_weight, prompt_weight

FULL: Final = 0.75
"""Share of the window that a request may fill; the rest is for the reply."""
LARGEST: Final = 0.25  # share of the window for one text
_SMALL = 1 / 32  # share of the window for an excerpt of an old result
_STEP = 0.2  # of the available space to free at a time, so that prompt caches last a while
_MIN_SAVING = 0.2  # of the available space that a summary must free to be worth a request
_ADDED = 0.1  # share of the window for the rules at the end of a request
_KEPT = 6  # newest messages that are always sent
_PART = "[an image or file of this message is not sent any more]"


@dataclass(frozen=True, slots=True)
class Fitted:
    """The messages to send, without the system prompt.

    If a summary is needed, it replaces the messages before index `cut`. `weight` is the approximate
    weight of the whole request, `weights` those of its messages; both are empty without a window.
    """

    messages: tuple[Message, ...]
    has_excerpts: bool = False
    cut: int | None = None
    weight: int = 0
    weights: tuple[int, ...] = ()


def fit(run: Run) -> Fitted:
    """Select and shorten the run's conversation for the next request."""
    said = conversation(run)
    if run.window.limit is None and _last_summary(said) is None:
        return Fitted(said)
    places = _places(said, question_place(run))
    if run.window.limit is None:
        return Fitted(tuple(said[place] for place in places))
    return _Fitting(run, said, places).fitted()


def summarised(run: Run, cut: int) -> tuple[Message, ...]:
    """Return the messages to summarize up to `cut`, with the last summary first."""
    said = conversation(run)
    last = _last_summary(said, with_text=True)
    if last is None:
        return tuple(m for m in said[:cut] if m.keeps is None)
    start = max(0, last - (said[last].keeps or 0))
    return (said[last], *(m for m in said[start:cut] if m.keeps is None))


class _Fitting:
    """Shrinks a conversation, the least harmful cuts first."""

    def __init__(self, run: Run, said: Sequence[Message], places: Sequence[int]) -> None:
        self._said = said
        self._places = places
        self._window = run.window
        self._question = question_place(run)
        self._messages = [said[place] for place in places]
        self._weights = [message_weight(message) for message in self._messages]
        estimated = prompt_weight(run.system) + round(self._window.weight(_ADDED))
        self._others = max(estimated, self._window.others)
        self._fits = self._window.weight(FULL)
        newest = {place for place in places if place >= len(said) - _KEPT}
        self._old = [n for n, place in enumerate(places) if place not in newest]

    def fitted(self) -> Fitted:
        cut = None
        self._shorten(range(len(self._places)), self._window.weight(LARGEST))
        if self._excess > 0:
            self._shorten_old()
        if self._excess > 0:
            cut = None if self._window.has_compacted else self._cut()
            max_weight = self._window.weight(LARGEST) / 2
            while self._excess > 0 and max_weight >= 1:
                self._shorten(range(len(self._places)), max_weight)
                max_weight /= 2
            self._leave_out()
        has_excerpts = any(
            m is not self._said[p] for m, p in zip(self._messages, self._places, strict=True)
        )
        weights = tuple(self._weights)
        return Fitted(tuple(self._messages), has_excerpts, cut, self._total, weights)

    @property
    def _total(self) -> int:
        return self._others + sum(self._weights)

    @property
    def _excess(self) -> float:
        return self._total - self._fits

    def _shorten(self, places: Sequence[int], max_weight: float) -> None:
        for n in places:
            if self._weights[n] > max_weight and self._places[n] != self._question:
                self._replace(n, shortened(self._messages[n], max_weight))

    def _shorten_old(self) -> None:
        """Shorten texts, oldest first, until a whole number of `_STEP`s is freed."""
        step = self._fits * _STEP
        due = self._total - self._fits + step - 1
        enough = self._total - due // step * step
        max_weight = self._window.weight(_SMALL)
        for n in self._old:
            if self._total <= enough:
                break
            if self._messages[n].parts:
                text = f"{self._messages[n].content}\n{_PART}"
                self._replace(n, replace(self._messages[n], content=text, parts=(), results=()))
            self._shorten((n,), max_weight)

    def _leave_out(self) -> None:
        """Drop the oldest messages, if a tiny window leaves no other way."""
        newest = len(self._said) - 1
        while newest > 0 and _is_tied(self._said, newest):
            newest -= 1
        last = {_first_of_user(self._said), _last_summary(self._said)}
        droppable = [p for p in self._places if p < newest and p != self._question]
        droppable.sort(key=lambda place: place in last)  # otherwise stable
        while self._excess > 0 and droppable:
            dropped = {droppable.pop(0)}
            while droppable and droppable[0] not in last and _is_tied(self._said, droppable[0]):
                dropped.add(droppable.pop(0))
            kept = [n for n, place in enumerate(self._places) if place not in dropped]
            self._places = [self._places[n] for n in kept]
            self._messages = [self._messages[n] for n in kept]
            self._weights = [self._weights[n] for n in kept]

    def _replace(self, n: int, message: Message) -> None:
        self._messages[n] = message
        self._weights[n] = message_weight(message)

    def _cut(self) -> int | None:
        """Return the index of the first message to keep beside a summary, if that frees enough.

        The start of a turn is best; within a long turn, any message not tied to the one before.
        """
        said, last = self._said, _last_summary(self._said)
        start = 0 if last is None else _kept_from(said, last)
        latest = len(said) - _KEPT
        while latest > start and _is_tied(said, latest):
            latest -= 1
        turn = next((n for n in range(latest, start, -1) if _begins_turn(said, n)), None)
        for cut in (turn, latest):
            if cut is not None and cut > start and self._is_worth(start, cut):
                return cut
        return None

    def _is_worth(self, start: int, cut: int) -> bool:
        pinned = {_first_of_user(self._said), self._question}
        saved = sum(
            weight
            for place, weight in zip(self._places, self._weights, strict=True)
            if start <= place < cut and place not in pinned and self._said[place].keeps is None
        )
        return saved >= self._fits * _MIN_SAVING


def _places(said: Sequence[Message], question: int | None) -> list[int]:
    """Return the indices of the messages to send, in order, if everything fits."""
    last = _last_summary(said)
    if last is None:
        return list(range(len(said)))
    start = _kept_from(said, last)
    first = _first_of_user(said)
    pinned = {first: None, last: None, question: None}
    kept = [n for n in range(start, len(said)) if said[n].keeps is None]
    return [*(n for n in pinned if n is not None and (n < start or n == last)), *kept]


def _kept_from(said: Sequence[Message], last: int) -> int:
    """Return the index from which the last summary keeps messages; calls keep their results."""
    start = max(0, last - (said[last].keeps or 0))
    while start > 0 and start < last and _is_tied(said, start):
        start -= 1
    return start


def _first_of_user(said: Sequence[Message]) -> int | None:
    return next((n for n in range(len(said)) if _begins_turn(said, n)), None)


def question_place(run: Run) -> int | None:
    """Return the index of the current question, or of that of the resumed run."""
    if run.asked.at is not None:
        return len(run.history) + run.asked.at
    asked = (n for n in range(len(run.history) - 1, -1, -1) if _begins_turn(run.history, n))
    return next(asked, None)


def _begins_turn(said: Sequence[Message], n: int) -> bool:
    return said[n].role == "user" and not _is_tied(said, n)


def _last_summary(said: Sequence[Message], *, with_text: bool = False) -> int | None:
    for n in range(len(said) - 1, -1, -1):
        if said[n].keeps is not None and not (with_text and said[n].content == prompt.NO_SUMMARY):
            return n
    return None


def _is_tied(said: Sequence[Message], n: int) -> bool:
    """Whether a message belongs to the one before it, as a result or a rejection."""
    message = said[n]
    if message.keeps is not None or message.role == "tool" or message.results:
        return True
    follows_reply = n > 0 and said[n - 1].role == "assistant" and message.role == "user"
    return follows_reply and message.content.startswith("[Step ")
