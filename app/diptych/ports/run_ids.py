"""Run ids, which carry the epoch of their store (loop.md §9).

So a lost run differs from one that never was: an id with another epoch was a run once.
"""

import re

_FORM = re.compile(r"run-([0-9a-f]{8})-[0-9a-f]{32}")


def run_id_of(epoch: str, token: str) -> str:
    """Make an id of a store's epoch (8 hex digits) and a new token (32)."""
    return f"run-{epoch}-{token}"


def epoch_of(run_id: str) -> str:
    """Read the epoch out of a run id; nothing if it has none."""
    form = _FORM.fullmatch(run_id)
    return form[1] if form else ""
