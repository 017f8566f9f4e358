"""A problem of an Agent, as a condition says it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason in one CamelCase word, and a message that says what to do about it."""

    reason: str
    message: str
