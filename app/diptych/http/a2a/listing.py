"""`ListTasks` of A2A (specification, 3.1.4): the tasks of this agent, the newest status first.

A page's token names the last task of the page before it by time and id, so it stays good when
that task changes or goes.
"""

import asyncio

from a2a.types import ListTasksRequest, ListTasksResponse, Task
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)

from diptych.errors import RunLost, RunNotFound
from diptych.http.a2a.task import STATES, milliseconds, snapshot
from diptych.ports.entries import RunEntry
from diptych.runtime.service import RunService

_TOKEN_LIMIT = 512  # characters
_NANOSECONDS = 1_000_000  # in a millisecond

_Place = tuple[int, str]
"""Where a task stands in the list: the time of its status in milliseconds, and its id."""


async def list_tasks(runs: RunService, asked: ListTasksRequest) -> ListTasksResponse:
    """Give a page of tasks. Raises the errors of A2A, `StoreError`."""
    validate_history_length(asked)
    if asked.HasField("page_size"):
        validate_page_size(asked.page_size)
    size = asked.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    before = _read_token(asked.page_token)
    found = await _found(runs, asked)
    rest = [(place, entry) for place, entry in found if before is None or place < before]
    page = rest[:size]
    tasks = await asyncio.gather(*(_task(runs, entry, asked) for _, entry in page))
    return ListTasksResponse(
        tasks=[task for task in tasks if task is not None],
        next_page_token=_write_token(page[-1][0]) if len(rest) > size else "",
        page_size=size,
        total_size=len(found),
    )


async def _found(runs: RunService, asked: ListTasksRequest) -> list[tuple[_Place, RunEntry]]:
    """Give the runs that fit, in the list's order."""
    found = [
        ((milliseconds(entry.updated), entry.run_id), entry)
        for entry in await runs.entries(asked.context_id or None)
        if not asked.status or STATES[entry.status] == asked.status
    ]
    if asked.HasField("status_timestamp_after"):
        earliest = asked.status_timestamp_after.ToNanoseconds()
        found = [(place, e) for place, e in found if place[0] * _NANOSECONDS >= earliest]
    return sorted(found, key=lambda each: each[0], reverse=True)


async def _task(runs: RunService, entry: RunEntry, asked: ListTasksRequest) -> Task | None:
    """Show a task as it was when it was found; None if it has gone since."""
    try:
        records = (await runs.records(entry.run_id))[: entry.seq]
    except (RunNotFound, RunLost):
        return None
    length = asked.history_length if asked.HasField("history_length") else None
    task = snapshot(entry, records, length)
    if not asked.include_artifacts:
        task.ClearField("artifacts")
    return task


def _read_token(token: str) -> _Place | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token) if len(token) <= _TOKEN_LIMIT else None
    if cursor is None or cursor.timestamp_ns is None:
        raise InvalidParamsError("pageToken is not one that this agent gave; leave it out")
    return cursor.timestamp_ns // _NANOSECONDS, cursor.task_id


def _write_token(place: _Place) -> str:
    return encode_list_tasks_cursor(ListTasksCursor(place[0] * _NANOSECONDS, place[1]))
