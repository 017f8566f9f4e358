"""Writes what a person could not see in a text, or what would turn it around, by its number.

The same characters as on the page (`http/page/text.js`). Pure.
"""

import unicodedata

_ODD_CATEGORIES = frozenset(("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"))
_IGNORED = frozenset(
    (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)
"""Others that Unicode calls default ignorable, and the blank of Braille."""


def with_odd_characters_shown(text: str) -> str:
    """Write each odd character as `⟨U+200B⟩`."""
    return "".join(f"⟨U+{ord(char):04X}⟩" if _is_odd(char) else char for char in text)


def _is_odd(char: str) -> bool:
    if char.isascii() and char.isprintable():
        return False
    if unicodedata.category(char) == "Zs":
        return char != " "
    return unicodedata.category(char) in _ODD_CATEGORIES or ord(char) in _IGNORED
