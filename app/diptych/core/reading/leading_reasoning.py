"""Takes the reasoning in front of a reply off it, whole or as it arrives (loop.md §7).

<think>…</think> and <thinking>…</thinking>, and what other models write for them
…</think>                                     whose opening stood in the prompt already
<|channel|>analysis<|message|>…<|end|>        gpt-oss; <|channel|>final<|message|> is dropped
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

PAIRS = {
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
RESPONSE_ENDS = {"[BEGIN FINAL RESPONSE]": ("[END FINAL RESPONSE]",)}
"""What ends the reasoning of Apriel, whose opening always stands in the prompt, and the answer."""

CLOSERS = (*PAIRS.values(), *RESPONSE_ENDS)
TAGS = (*PAIRS, *CLOSERS)
CLOSER = re.compile("|".join(map(re.escape, CLOSERS)))
OPENING = re.compile("|".join(map(re.escape, PAIRS)))

START = "<|start|>assistant"
CHANNEL = "<|channel|>"
HEADER = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(?P<channel>analysis|final|commentary)\s*<\|message\|>"
)
HEADER_LENGTH = 80
ANALYSIS_END = re.compile(r"<\|end\|>|(?=<\|start\|>assistant|<\|channel\|>)")
ANALYSIS_TAGS = ("<|end|>", "<|start|>assistant", "<|channel|>")
FINAL_ENDS = ("<|return|>", "<|end|>")

FIRSTS = frozenset(tag[0] for tag in (*TAGS, *ANALYSIS_TAGS, *FINAL_ENDS))
"""With what any of them begins."""


_BLANKS = re.compile(r"[\s\ufeff]*")
_QUOTES = "`'\"\u201c\u2018\u00ab"


class Split(NamedTuple):
    """What a piece of a stream brings: text of the answer, and reasoning.

    With `is_void`, all text that was given out before was reasoning, and the answer begins anew.
    """

    text: str = ""
    reasoning: str = ""
    is_void: bool = False


def strip_lead(reply: str) -> tuple[str, str]:
    """Split a reply into its text, and the reasoning in front of it.

    A byte order mark is dropped. What follows a `<think>` that never closes is all reasoning.
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


@dataclass(slots=True)
class _Block:
    """Reasoning that is open; `closer` is what ends it, in full one of `tags`."""

    closer: re.Pattern[str]
    tags: tuple[str, ...]


class ReasoningSplitter:
    """Separates the reasoning in front of a stream from its text, as it comes.

    Held back are: blanks before the text, so that a blank answer is never shown; what may become
    a tag; and nothing else. A model may close a block that the prompt had opened: what came before
    its `</think>` has been given out as text by then, so that models that do not reason are not
    kept waiting. `is_void` says so, and the answer's text is to be reset. A `</think>` counts so
    once, only if no block was opened before it, and not in quotation marks.

    With `opened`, a block is taken to be open from the start, unless the stream opens one itself:
    for endpoints of which that is known. If it never closes, all of the stream was text, which
    `finish` gives.

    `blank` is what was held back and never shown; `closed_first` says that a block that was taken
    to be open has closed.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.blank = ""
        self.closed_first = False
        self._held = ""
        self._at = 0  # what is held back begins here
        self._may_be_open = opened  # until the first characters say otherwise
        self._block: _Block | None = None
        self._unclosed: list[str] | None = None
        self._is_text = False
        self._had_block = False
        self._given = False  # reasoning, of a block before
        self._last = ""  # character of the text
        self._ends: tuple[str, ...] = ()  # of the text, which belong to neither

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
        """Give what is still held back, at the end of the stream."""
        held = self.release()
        if self._block is None:
            if not self._is_text and not _BLANKS.sub("", held):
                self.blank = "" if self._had_block else held.replace("\ufeff", "")
                return Split()
            return Split("" if self._ends and held in self._ends else held)
        if self._unclosed is not None:
            return Split("".join((*self._unclosed, held)))
        return Split(reasoning=held)

    def _next(self) -> tuple[Split, bool]:
        if self._may_be_open:
            return self._open_lead()
        if self._block is not None:
            return self._reason(self._block)
        return self._answer() if self._is_text else self._lead()

    def _open_lead(self) -> tuple[Split, bool]:
        """Look whether a block that the prompt may have opened is opened by the stream itself."""
        rest = self._held[_BLANKS.match(self._held).end() :]  # type: ignore[union-attr]
        is_own = bool(OPENING.match(rest) or HEADER.match(rest))
        if not is_own and not CLOSER.match(rest) and (not rest or _may_open(rest)):
            return Split(), False
        self._may_be_open = False
        if not is_own:
            self._block, self._unclosed = _Block(CLOSER, CLOSERS), []
        return Split(), True

    def _reason(self, block: _Block) -> tuple[Split, bool]:
        if closer := block.closer.search(self._held, self._at):
            thought = self._thought(self._held[self._at : closer.start()])
            self._at = closer.end()
            self.closed_first = self.closed_first or self._unclosed is not None
            self._block = self._unclosed = None
            self._close(closer[0])
            return Split(reasoning=thought), True
        thought = self._all_but_start(block.tags)
        if self._unclosed is not None:
            self._unclosed.append(thought)
        return Split(reasoning=self._thought(thought)), False

    def _thought(self, thought: str) -> str:
        if self._had_block and not self._given and thought.strip():
            thought = "\n\n" + thought.lstrip()
        self._given = self._given or bool(thought.strip())
        return thought

    def _lead(self) -> tuple[Split, bool]:
        """Look at what stands before the text: blanks, or the opening of a block."""
        at = _BLANKS.match(self._held, self._at).end()  # type: ignore[union-attr]
        rest = self._held[at : at + HEADER_LENGTH]
        if not rest:
            return Split(), False
        if rest[0] in FIRSTS:
            for opening, closing in PAIRS.items():
                if rest.startswith(opening):
                    return self._open(at + len(opening), _block(closing))
            if header := HEADER.match(rest):
                return self._channel(at + header.end(), header["channel"])
            if orphan := CLOSER.match(rest):
                self._at = at + orphan.end()
                self._close(orphan[0])
                return Split(), True
            if _may_open(rest):
                return Split(), False
        if self._had_block:
            self._at = at
        while self._held.startswith("\ufeff", self._at):
            self._at += 1
        self._is_text = True
        return Split(), True

    def _close(self, tag: str) -> None:
        self._had_block = True
        self._ends = RESPONSE_ENDS.get(tag, self._ends)

    def _open(self, at: int, block: _Block) -> tuple[Split, bool]:
        self._at, self._block = at, block
        self._given = False
        return Split(), True

    def _channel(self, at: int, channel: str) -> tuple[Split, bool]:
        if channel == "analysis":
            return self._open(at, _Block(ANALYSIS_END, ANALYSIS_TAGS))
        self._at, self._ends = at, FINAL_ENDS
        self._is_text = self._had_block = True
        return Split(), True

    def _answer(self) -> tuple[Split, bool]:
        if not self._had_block and _may_hold_tag(self._held):
            orphan = CLOSER.search(self._held, self._at)
            opening = OPENING.search(self._held, self._at)
            if opening and not (orphan and orphan.start() < opening.start()):
                self._had_block = True  # a block inside the text is text, and so is its end
            elif orphan:
                thought = self._held[self._at : orphan.start()]
                before = (self._last + thought)[-1:]
                self._had_block = True
                if not before or before not in _QUOTES:
                    self._close(orphan[0])
                    self._at, self._is_text = orphan.end(), False
                    return Split(reasoning=thought, is_void=True), True
        text = self._all_but_start(() if self._had_block else TAGS, self._ends)
        self._last = text[-1:] or self._last
        return Split(text), False

    def _all_but_start(self, tags: tuple[str, ...], wholes: tuple[str, ...] = ()) -> str:
        """Take all of what is held but its end, if that may become one of `tags`.

        Or if it may become, or is, one of `wholes`.
        """
        most = max(map(len, (*tags, *wholes)), default=0)
        begin = len(self._held)
        first = max(self._at, begin - most)
        for at in range(first, begin) if _may_hold_tag(self._held[first:]) else ():
            if self._held[at] not in FIRSTS:
                continue
            tail = self._held[at:]
            is_start = any(tag.startswith(tail) and tag != tail for tag in tags)
            if is_start or any(whole.startswith(tail) for whole in wholes):
                begin = at
                break
        taken, self._at = self._held[self._at : begin], begin
        return taken

    def release(self) -> str:
        """Give what is held back of a text that goes on unlooked at."""
        held, self._held, self._at = self._held[self._at :], "", 0
        return held


class ReasoningFilter:
    """Takes the reasoning off a stream whose pieces are only looked at while it `is_open`.

    It is `ReasoningSplitter` for callers that cannot reset an answer: once text has begun, a
    `</think>` without an opening is text.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._splitter = ReasoningSplitter()
        self._thoughts: list[str] = []

    @property
    def reasoning(self) -> str:
        """All of the reasoning so far."""
        return "".join(self._thoughts).strip()

    def feed(self, text: str) -> str:
        """Take the next piece, and give the text that certainly belongs to the answer."""
        split = self._splitter.feed(text)
        self._thoughts.append(split.reasoning)
        self.is_open = not split.text
        return split.text + (self._splitter.release() if split.text else "")

    def finish(self) -> str:
        """Give the text that is still held back, at the end of the stream."""
        self.is_open = False
        split = self._splitter.finish()
        self._thoughts.append(split.reasoning)
        return split.text


def _block(closing: str) -> _Block:
    return _Block(re.compile(re.escape(closing)), (closing,))


def _may_hold_tag(text: str) -> bool:
    """Whether a text has a character with which a tag begins; most have none."""
    return "<" in text or "[" in text


def _may_open(text: str) -> bool:
    """Whether the text may be the beginning of what opens or closes a block."""
    if any(opening.startswith(text) for opening in TAGS):
        return True
    header = text.removeprefix(START)
    if START.startswith(text) or CHANNEL.startswith(header):
        return True
    name, mark, rest = header.removeprefix(CHANNEL).partition("<")
    if not header.startswith(CHANNEL) or len(text) >= HEADER_LENGTH:
        return False
    is_name = any(known.startswith(name.rstrip()) for known in ("analysis", "final", "commentary"))
    return is_name and "<|message|>".startswith(mark + rest)
