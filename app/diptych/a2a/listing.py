"""`ListTasks` of A2A (specification, 3.1.4): the tasks of this agent, the newest status first.

A page token is the time and id of the last task of the page before. So it stays valid when that
task changes or is forgotten.
"""

import asyncio

from a2a.types import ListTasksRequest, ListTasksResponse, Task, TaskState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)

from diptych.a2a.task import TASK_STATES, milliseconds, task_snapshot
from diptych.core.errors import RunLost, RunNotFound
from diptych.http.guarded_runs import GuardedRuns
from diptych.ports.entries import RunEntry, RunPage

_MAX_TOKEN = 512  # characters
_NANOSECONDS = 1_000_000  # in a millisecond

_Position = tuple[int, str]
"""The position of a task in the list: the time of its status in milliseconds, and its id."""


async def list_tasks(runs: GuardedRuns, params: ListTasksRequest) -> ListTasksResponse:
    """Give a page of tasks. Raises the errors of A2A, `StoreError`."""
    validate_history_length(params)
    if params.HasField("page_size"):
        validate_page_size(params.page_size)
    if params.status not in TaskState.values():
        raise InvalidParamsError(f"status is no state of a task: {', '.join(TaskState.keys())}")
    size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
    matching = await _matching_entries(runs, params, size + 1)
    page, has_more = matching.entries[:size], len(matching.entries) > size
    tasks = await asyncio.gather(*(_task(runs, entry, params) for entry in page))
    return ListTasksResponse(
        tasks=[task for task in tasks if task is not None],
        next_page_token=_write_token(_position(page[-1])) if has_more else "",
        page_size=size,
        total_size=matching.total,
    )


async def _matching_entries(runs: GuardedRuns, params: ListTasksRequest, limit: int) -> RunPage:
    """Give `limit` of the runs that match the filters, from the page token on, in the list's order.

    The runs of one context are few, so they are filtered and sorted here.
    """
    before, since = _read_token(params.page_token), 0
    if params.HasField("status_timestamp_after"):
        since = -(-params.status_timestamp_after.ToNanoseconds() // _NANOSECONDS)
    statuses = [s for s, state in TASK_STATES.items() if params.status in {0, state}]
    if not params.context_id:
        return await runs.updated_entries(statuses, limit, since=since, before=before)
    entries = await runs.entries(params.context_id)
    matching = [e for e in entries if e.status in statuses and _position(e)[0] >= since]
    rest = [e for e in matching if before is None or _position(e) < before]
    return RunPage(sorted(rest, key=_position, reverse=True)[:limit], len(matching))


def _position(entry: RunEntry) -> _Position:
    return milliseconds(entry.updated), entry.run_id


async def _task(runs: GuardedRuns, entry: RunEntry, params: ListTasksRequest) -> Task | None:
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
