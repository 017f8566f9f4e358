"""Splits reasoning from the reply after it, in whole texts and in streams (loop.md §7)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_PAIRS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<think:opensource>": "</think:opensource>",  # Hunyuan
    "<seed:think>": "</seed:think>",  # Seed-OSS
    "<mm:think>": "</mm:think>",  # MiniMax
    "[THINK]": "[/THINK]",  # Mistral
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",  # Kimi K3
    "<|inner_prefix|>": "<|inner_suffix|>",  # Apertus
}
_RESPONSE, _RESPONSE_END = "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"
"""Apriel's marks: the first ends its reasoning, which the prompt opens."""

_START = "<|start|>assistant"  # gpt-oss may write it before each channel
_ANALYSIS, *_OTHERS = (
    [f"{start}<|channel|>{name}<|message|>" for start in ("", _START)]
    for name in ("analysis", "final", "commentary")
)
_TEXT_CHANNELS = [opening for openings in _OTHERS for opening in openings]
_CLOSERS = (*_PAIRS.values(), _RESPONSE)
_TAGS = (*_PAIRS, *_CLOSERS)
_LEADS = (*_TAGS, *_ANALYSIS, *_TEXT_CHANNELS)
_FIRSTS = "<["  # first characters of all tags

_CLOSER = re.compile("|".join(map(re.escape, _CLOSERS)))
_OPENING = re.compile("|".join(map(re.escape, _PAIRS)))
_BLANKS = re.compile(r"[\s\ufeff]*")
_QUOTES = "`'\"\u201c\u2018\u00ab"


class Split(NamedTuple):
    """The answer's text and the reasoning in a piece of a stream.

    `is_void`: all text returned before was reasoning, and the answer starts again.
    """

    text: str = ""
    reasoning: str = ""
    is_void: bool = False


@dataclass(frozen=True, slots=True)
class _Block:
    """Open reasoning: the pattern that ends it, and the tags whose prefixes are held back."""

    closer: re.Pattern[str]
    tags: tuple[str, ...]


_BLOCKS = {
    **{opening: _Block(re.compile(re.escape(end)), (end,)) for opening, end in _PAIRS.items()},
    **dict.fromkeys(
        _ANALYSIS,
        _Block(
            re.compile(r"<\|end\|>|(?=<\|start\|>assistant|<\|channel\|>)"),
            ("<|end|>", _START, "<|channel|>"),
        ),
    ),
}


def strip_lead(reply: str) -> tuple[str, str]:
    """Split a reply into its text and the reasoning before it.

    A byte order mark is dropped. Everything after an unclosed `<think>` is reasoning.
    """
    if not (_may_hold_tag(reply) or _BLANKS.fullmatch(reply)):
        return reply.lstrip("\ufeff"), ""
    splitter = ReasoningSplitter()
    text, reasoning = "", ""
    for split in (splitter.feed(reply), splitter.finish()):
        if split.is_void:
            reasoning, text = text + reasoning, ""
        text += split.text
        reasoning += split.reasoning
    return text or splitter.blank, reasoning.strip()


class ReasoningSplitter:
    """Splits a stream into leading reasoning and text.

    It holds back leading blanks, so that blank answers are never shown, and prefixes of tags. If
    the prompt opened the reasoning, only the closing `</think>` shows it, and the text before that
    has been passed on already, so that models without reasoning are not delayed: `Split.is_void`.
    This happens once at most, not after an opened block, and not for a quoted `</think>`.

    With `opened`, for endpoints known to open the reasoning, the stream begins as reasoning, unless
    it opens a block itself. If that never closes, it was all text, which `finish` returns.

    `blank` is the blank text held back to the end; `closed_first` says whether reasoning assumed to
    be open was closed.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.blank = ""
        self.closed_first = False
        self._held = ""
        self._at = 0  # where the held text begins; cutting it each time would be quadratic
        self._may_be_open = opened  # until the first characters say otherwise
        self._block: _Block | None = None
        self._unclosed: list[str] | None = None  # reasoning that may turn out to be text
        self._is_text = False
        self._had_block = False
        self._has_reasoned = False  # in a block before
        self._last = ""  # last character of the text
        self._ends: tuple[str, ...] = ()  # tags to remove from the end of the text

    def feed(self, piece: str) -> Split:
        """Take the next piece."""
        self._held, self._at = self._held[self._at :] + piece, 0
        text, reasoning, is_void = "", "", False
        while True:
            split, goes_on = self._next()
            if split.is_void:
                text, reasoning, is_void = "", reasoning + text, True
            text, reasoning = text + split.text, reasoning + split.reasoning
            if not goes_on:
                return Split(text, reasoning, is_void)

    def finish(self) -> Split:
        """Return the held text, at the end of the stream."""
        held = self._held[self._at :]
        if self._unclosed is not None:
            return Split("".join((*self._unclosed, held)))
        if self._block:
            return Split(reasoning=held)
        if not self._is_text and not _BLANKS.sub("", held):
            self.blank = "" if self._had_block else held.replace("\ufeff", "")
            return Split()
        return Split("" if held in self._ends else held)

    def _next(self) -> tuple[Split, bool]:
        if self._may_be_open:
            return self._look_for_own_block()
        if self._block:
            return self._reason(self._block)
        return self._answer() if self._is_text else self._lead()

    def _look_for_own_block(self) -> tuple[Split, bool]:
        """Check whether the stream opens its own block of reasoning."""
        rest = _BLANKS.sub("", self._held, count=1)
        is_own = rest.startswith((*_PAIRS, *_ANALYSIS, *_TEXT_CHANNELS))
        if not is_own and not rest.startswith(_CLOSERS) and _may_become(rest, _LEADS):
            return Split(), False
        self._may_be_open = False
        if not is_own:
            self._block, self._unclosed = _Block(_CLOSER, _CLOSERS), []
        return Split(), True

    def _reason(self, block: _Block) -> tuple[Split, bool]:
        if closer := block.closer.search(self._held, self._at):
            thought = self._thought(self._held[self._at : closer.start()])
            self._at = closer.end()
            self.closed_first = self.closed_first or self._unclosed is not None
            self._block = self._unclosed = None
            self._close(closer[0])
            return Split(reasoning=thought), True
        thought = self._take_all_but(block.tags)
        if self._unclosed is not None:
            self._unclosed.append(thought)
        return Split(reasoning=self._thought(thought)), False

    def _thought(self, thought: str) -> str:
        if self._had_block and not self._has_reasoned and thought.strip():
            thought = "\n\n" + thought.lstrip()
        self._has_reasoned = self._has_reasoned or bool(thought.strip())
        return thought

    def _lead(self) -> tuple[Split, bool]:
        """Skip blanks and tags before the text."""
        blanks = _BLANKS.match(self._held, self._at)
        at = blanks.end() if blanks else self._at
        if at == len(self._held):
            return Split(), False
        lead = next((tag for tag in _LEADS if self._held.startswith(tag, at)), "")
        if lead in _BLOCKS:
            self._at, self._block, self._has_reasoned = at + len(lead), _BLOCKS[lead], False
            return Split(), True
        if lead in _CLOSERS:
            self._at = at + len(lead)
            self._close(lead)
            return Split(), True
        if not lead and _may_become(self._held[at : at + 80], _LEADS):
            return Split(), False
        if lead:
            self._ends = ("<|return|>", "<|end|>")
            self._had_block = True
        if self._had_block:
            self._at = at + len(lead)
        while self._held.startswith("\ufeff", self._at):
            self._at += 1
        self._is_text = True
        return Split(), True

    def _close(self, tag: str) -> None:
        self._had_block = True
        if tag == _RESPONSE:
            self._ends = (_RESPONSE_END,)

    def _answer(self) -> tuple[Split, bool]:
        if not self._had_block and _may_hold_tag(self._held):
            orphan = _CLOSER.search(self._held, self._at)
            opening = _OPENING.search(self._held, self._at)
            if opening and not (orphan and orphan.start() < opening.start()):
                self._had_block = True  # a block inside the text is text, including its end
            elif orphan:
                thought = self._held[self._at : orphan.start()]
                before = (self._last + thought)[-1:]
                self._had_block = True
                if not before or before not in _QUOTES:
                    self._close(orphan[0])
                    self._at, self._is_text = orphan.end(), False
                    return Split(reasoning=thought, is_void=True), True
        text = self._take_all_but(() if self._had_block else _TAGS, self._ends)
        self._last = text[-1:] or self._last
        return Split(text), False

    def _take_all_but(self, tags: tuple[str, ...], ends: tuple[str, ...] = ()) -> str:
        """Take the held text, except an end that may become one of `tags`, or belongs to `ends`."""
        end = len(self._held)
        first = max(self._at, end - max(map(len, (*tags, *ends)), default=0))
        for at in range(first, end) if _may_hold_tag(self._held[first:]) else ():
            tail = self._held[at:]
            if tail in ends or _may_become(tail, (*tags, *ends)):
                end = at
                break
        taken, self._at = self._held[self._at : end], end
        return taken


def _may_hold_tag(text: str) -> bool:
    return "<" in text or "[" in text


def _may_become(text: str, tags: Sequence[str]) -> bool:
    """Whether a text is a proper prefix of a tag."""
    if text and text[0] not in _FIRSTS:
        return False
    return any(tag.startswith(text) and tag != text for tag in tags)
