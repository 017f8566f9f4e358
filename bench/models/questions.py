"""The pools of questions, and which of their entries are in which set.

TUNE, EVERYDAY_TUNE and FRESH_TUNE are what prompts are tuned on; JUDGE, BLIND, EVERYDAY and FRESH
are what they are judged by. `sets.yaml` keeps them apart; `selection` wrote it, by a rule that
looks at no prompt of ours.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

FOLDER = Path(__file__).parent / "questions"
Kind = Literal["plain", "results", "calls", "delegations", "histories"]
SetName = Literal["tune", "judge", "blind", "everyday_tune", "everyday", "fresh_tune", "fresh"]
_AFTER_A_WORD = 8  # characters that say whether it ends there: ",000.5", and what is cut off
KINDS: tuple[Kind, ...] = ("plain", "results", "calls", "delegations", "histories")


@dataclass(frozen=True, slots=True)
class Question:
    """One entry of a pool: what is asked, the other fields of its file, and how it is judged."""

    ask: str
    group: str
    fields: dict[str, Any]

    def is_right(self, answer: str) -> bool:
        """Whether an answer names what it must, as a word of its own, in any case."""
        plain = _plain(answer)
        right = [str(word) for word in self.fields["right"]]
        options = [str(word) for word in self.fields.get("first", ())]
        if options:
            named = _first_of(options, plain)
            return named is not None and named.lower() in {word.lower() for word in right}
        return _first_of(right, plain) is not None

    def is_settled(self, answer: str) -> bool:
        """Whether nothing that may follow changes how an answer is judged.

        It names a word that decides, and enough follows to see that the word ends there.
        """
        plain = _plain(answer)
        places = _places(self.words, plain)
        if not places:
            return False
        return min(places)[0] + max(map(len, self.words)) + _AFTER_A_WORD <= len(plain)

    @property
    def words(self) -> list[str]:
        """The words by which an answer is judged: the first of them decides."""
        return [str(word) for word in self.fields.get("first") or self.fields["right"]]


def pool(kind: Kind) -> list[Question]:
    found = yaml.safe_load((FOLDER / f"{kind}.yaml").read_text())
    groups = found if isinstance(found, dict) else {kind: found}
    return [Question(q["ask"], group, q) for group, entries in groups.items() for q in entries]


def chosen(kind: Kind, name: SetName) -> list[Question]:
    """Give one set of a kind, in the pool's order; nothing if the set has none of it."""
    asks = set(yaml.safe_load((FOLDER / "sets.yaml").read_text())[name].get(kind, ()))
    return [question for question in pool(kind) if question.ask in asks]


def _plain(answer: str) -> str:
    """Write numbers without commas, and with the sign that has a key."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", answer).replace("\u2212", "-")


def _first_of(words: list[str], text: str) -> str | None:
    """Give the word that is named first."""
    found = _places(words, text)
    return min(found)[2] if found else None


def _places(words: list[str], text: str) -> list[tuple[int, int, str]]:
    """Give where each word is named first. A sign or a decimal point is part of a number."""
    return [
        (match.start(), -len(word), word)
        for word in words
        if (match := re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w]|\.\d)", text, re.IGNORECASE))
    ]
