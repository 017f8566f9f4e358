"""Says whether an answer may begin with a call that has no tags and is no JSON (loop.md §7).

    n{…}, or n, a line break and {…}    what servers leave of four forms whose tokens they drop
    [n(a=1), …]                         Llama 4

Only the names that are offered open one, so prose is held for as long as a name is.
"""

import re
from bisect import bisect_left
from functools import lru_cache

_WORD = re.compile(r"[^\s<>\[\]{}()\"'`]{0,128}+")
_NAMESPACES = ("functions.", "functions:", "tools.", "tools:", "default_api.", "default_api:")
_NUMBER = re.compile(r":\d{0,4}\Z")  # Kimi's `functions.read:0`
_METHOD = ".call"  # Llama 3's `read.call(…)`


class BareOpenings:
    """The names by which calls may begin."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def opens(self, text: str) -> bool | None:
        """Say whether a text, from its first character on, opens a call; None while it may."""
        if not self._names:
            return False
        is_list = text.startswith("[")
        body = text[1:].lstrip() if is_list else text
        if not body:
            return None
        word = _WORD.match(body)
        name, after = (word[0], body[word.end() :]) if word else ("", body)
        if not after:
            return None if self._may_become_name(name) else False
        if self._plain(name) not in self._names:
            return False
        after = after.lstrip()
        return after.startswith("(" if is_list else "{") if after else None

    def _may_become_name(self, word: str) -> bool:
        if any(space.startswith(word) for space in _NAMESPACES):
            return True
        plain = self._plain(word)
        spellings = _spellings(self._names)
        place = bisect_left(spellings, plain)
        return place < len(spellings) and spellings[place].startswith(plain)

    def _plain(self, word: str) -> str:
        if word in self._names:
            return word
        space = next((space for space in _NAMESPACES if word.startswith(space)), "")
        return _NUMBER.sub("", word.removeprefix(space)).removesuffix(_METHOD)


@lru_cache(maxsize=32)
def _spellings(names: frozenset[str]) -> list[str]:
    """Give the names, also as methods, in order: the first that begins so is found at once."""
    return sorted(names | {f"{name}{_METHOD}" for name in names})
