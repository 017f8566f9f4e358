"""Looks through a list of runs for the caller's own."""

from collections.abc import Awaitable, Callable, Sequence

from diptych.access.caller import Caller
from diptych.ports.entries import RunEntry

_BATCH = 200  # entries that are looked through at once


async def own_entries(
    caller: Caller,
    page: Callable[..., Awaitable[Sequence[RunEntry]]],
    before: str | None,
    limit: int | None,
) -> Sequence[RunEntry]:
    """Give the first `limit` of the caller's own runs, or all, of the list that `page` gives.

    Raises what `page` does: `RunNotFound` if it does not know the run `before`.
    """
    own: list[RunEntry] = []
    while limit is None or len(own) < limit:
        found = await page(before=before, limit=_BATCH)
        own += [entry for entry in found if caller.owns(entry.session_id)]
        if len(found) < _BATCH:
            break
        before = found[-1].run_id
    return own[:limit]
