"""Puts the items of an input that are named by their ids in the place of the references.

Clients send back what a response gave by its id where they take it to be kept, as it is. The id
holds that of its response.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from diptych.core.errors import InvalidRequest, RunNotFound
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.responses.input_listing import input_items
from diptych.http.responses.items import Item, item_type
from diptych.http.responses.state import ResponseState, fed

MAX_REFERRED = 100  # responses that the references of one input read
_ID = re.compile(r"(?:msg|fc|fco)_(.{1,200})_(?:in)?[0-9]{1,9}")
_REASONING = "rs_"  # is on no record, and says nothing to the model
_PASSED_OVER: Item = {"type": "reasoning"}


async def with_referred(given: Sequence[object], runs: GuardedRuns) -> list[object]:
    """Give the items of an input, with those on record in place of references to them.

    What became void of a response says nothing any more. Raises `InvalidRequest`.
    """
    read: dict[str, Mapping[str, Item]] = {}
    found: list[object] = []
    for n, item in enumerate(given):
        if isinstance(item, Mapping) and item_type(item) == "item_reference":
            found.append(await _referred(item.get("id"), f"input[{n}].id", runs, read))
        else:
            found.append(item)
    return found


async def _referred(
    item_id: object, place: str, runs: GuardedRuns, read: dict[str, Mapping[str, Item]]
) -> Item:
    if isinstance(item_id, str) and item_id.startswith(_REASONING):
        return _PASSED_OVER
    named = _ID.fullmatch(item_id) if isinstance(item_id, str) else None
    if named and named[1] not in read:
        if len(read) == MAX_REFERRED:
            raise InvalidRequest(
                f"{place}: items of more than {MAX_REFERRED} responses are referred to; send "
                "previous_response_id",
                param=place,
            )
        read[named[1]] = await _items(named[1], runs)
    item = read[named[1]].get(named[0]) if named else None
    if item is None:
        raise InvalidRequest(
            f"{place}: no response that you may read has an item with this id; send the item "
            "itself, or previous_response_id",
            param=place,
            code="item_not_found",
        )
    return item


async def _items(run_id: str, runs: GuardedRuns) -> Mapping[str, Item]:
    """Give the items of a response by their ids; none of one that there is not."""
    try:
        entry = await runs.entry(run_id)
        records = await runs.records(run_id)
    except RunNotFound:
        return {}
    state = fed(ResponseState(entry, ""), records)
    items: list[dict[str, Any]] = [*input_items(records[:1]), *state.response()["output"]]
    return {item["id"]: item for item in items} | dict.fromkeys(state.void_ids, _PASSED_OVER)
