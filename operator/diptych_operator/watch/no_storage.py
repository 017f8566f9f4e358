"""Storages for kopf in which nothing is kept, because nothing is read from them.

For handlers of changes, kopf copies each object of each event some times, to compare it with the
one before. Here all handlers are of events, which need no comparison: without the copies an event
costs half as much.
"""

import kopf


class NoDiffBase(kopf.DiffBaseStorage):
    """Says of each object that it was never handled, and has nothing to compare."""

    def build(self, **_: object) -> kopf.BodyEssence:
        """Give an essence without fields."""
        return {}

    def fetch(self, **_: object) -> None:
        """Give no essence of before."""

    def store(self, **_: object) -> None:
        """Keep nothing."""


class NoProgress(kopf.ProgressStorage):
    """Knows of no handler that has begun and not ended."""

    def fetch(self, **_: object) -> None:
        """Give no progress."""

    def store(self, **_: object) -> None:
        """Keep nothing."""

    def purge(self, **_: object) -> None:
        """There is nothing to delete."""

    def touch(self, **_: object) -> None:
        """There is nothing to touch."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Give an essence as it is: no progress is in it."""
        return essence
