"""A problem of an Agent, as a condition says it."""

from dataclasses import dataclass
from typing import Final

FORMER_AGENT: Final = "FormerAgent"
"""The reason while an Agent waits until the children of a deleted Agent of its name are gone."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason in one CamelCase word, and a message that says what to do about it."""

    reason: str
    message: str
