"""The marks of a report's lines."""

from enum import Enum


class Mark(Enum):
    """What a line reports: a text with its style, as the line begins."""

    OK = ("✓ ", "green")
    FAILED = ("✗ ", "red")
    NOTE = ("! ", "yellow")

    @classmethod
    def of(cls, is_ok: bool) -> "Mark":
        return cls.OK if is_ok else cls.FAILED
