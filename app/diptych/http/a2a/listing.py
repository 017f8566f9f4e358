"""`ListTasks` of A2A (specification, 3.1.4): the tasks of this agent, the newest status first.

A page token is the time and id of the last task of the page before. So it stays valid when that
task changes or is forgotten.
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
from diptych.http.a2a.task import TASK_STATES, milliseconds, task_snapshot
from diptych.ports.entries import RunEntry
from diptych.runtime.service import RunService

_MAX_TOKEN = 512  # characters
_NANOSECONDS = 1_000_000  # in a millisecond

_Position = tuple[int, str]
"""The position of a task in the list: the time of its status in milliseconds, and its id."""


async def list_tasks(runs: RunService, params: ListTasksRequest) -> ListTasksResponse:
    """Give a page of tasks. Raises the errors of A2A, `StoreError`."""
    validate_history_length(params)
    if params.HasField("page_size"):
        validate_page_size(params.page_size)
    size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    before = _read_token(params.page_token)
    matching = await _matching_entries(runs, params)
    rest = [
        (position, entry) for position, entry in matching if before is None or position < before
    ]
    page = rest[:size]
    tasks = await asyncio.gather(*(_task(runs, entry, params) for _, entry in page))
    return ListTasksResponse(
        tasks=[task for task in tasks if task is not None],
        next_page_token=_write_token(page[-1][0]) if len(rest) > size else "",
        page_size=size,
        total_size=len(matching),
    )


async def _matching_entries(
    runs: RunService, params: ListTasksRequest
) -> list[tuple[_Position, RunEntry]]:
    """Give the runs that match the filters, in the order of the list."""
    matching = [
        ((milliseconds(entry.updated), entry.run_id), entry)
        for entry in await runs.entries(params.context_id or None)
        if not params.status or TASK_STATES[entry.status] == params.status
    ]
    if params.HasField("status_timestamp_after"):
        earliest = params.status_timestamp_after.ToNanoseconds()
        matching = [
            (position, e) for position, e in matching if position[0] * _NANOSECONDS >= earliest
        ]
    return sorted(matching, key=lambda each: each[0], reverse=True)


async def _task(runs: RunService, entry: RunEntry, params: ListTasksRequest) -> Task | None:
    """Give a task as it was when it was listed; None if it is gone now."""
    try:
        records = (await runs.records(entry.run_id))[: entry.seq]
    except (RunNotFound, RunLost):
        return None
    length = params.history_length if params.HasField("history_length") else None
    task = task_snapshot(entry, records, length)
    if not params.include_artifacts:
        task.ClearField("artifacts")
    return task


def _read_token(token: str) -> _Position | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token) if len(token) <= _MAX_TOKEN else None
    if cursor is None or cursor.timestamp_ns is None:
        raise InvalidParamsError("pageToken is not one that this agent gave; leave it out")
    return cursor.timestamp_ns // _NANOSECONDS, cursor.task_id


def _write_token(position: _Position) -> str:
    return encode_list_tasks_cursor(ListTasksCursor(position[0] * _NANOSECONDS, position[1]))
