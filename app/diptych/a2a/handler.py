"""The methods of A2A over `GuardedRuns`: a task is a run, and a context is a session.

There is no second task store (decision 7). If the process leaves or the store loses records, a
stream ends before its task; the client subscribes again and gets a snapshot.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)

from diptych.a2a import extension
from diptych.a2a.card import extended_card
from diptych.a2a.errors import ErrorTranslation
from diptych.a2a.events import add_events
from diptych.a2a.message import (
    joins_by_blanks,
    read_a2a_request,
    read_steering,
    takes_last_update_for_whole,
)
from diptych.a2a.push import PushSender, shown
from diptych.a2a.replies import Replies
from diptych.a2a.task import (
    TASK_STATES,
    TaskUpdates,
    Update,
    milliseconds,
    submitted_task,
    task_snapshot,
)
from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import RunLost, RunNotFound
from diptych.core.waits import open_waits
from diptych.http.agent_profile import AgentProfile
from diptych.http.audit import What, audited
from diptych.http.guarded_runs import GuardedRuns
from diptych.ports import Notice
from diptych.ports.entries import RunEntry, RunPage
from diptych.runs.answers import collect

BASE = "base"
"""The key of the agent's base URL in the state of a call's context."""
ATTEND_SECONDS = extension.LEASE_SECONDS / 6
_MAX_TOKEN_CHARS = 512
_NANOSECONDS = 1_000_000  # in a millisecond


class TaskHandler(RequestHandler):
    """Implements the SDK's request handler (A2A specification, 3.1)."""

    def __init__(
        self,
        runs: GuardedRuns,
        profile: AgentProfile,
        pushes: PushSender | None = None,
        replies: Replies | None = None,
    ) -> None:
        self._runs = runs
        self._profile = profile
        self._pushes = pushes
        self._replies = replies

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task:
        with ErrorTranslation():
            entry = await self._start_or_steer(params, context)
            length, message = _history_length(params.configuration), params.message
            if not params.configuration.return_immediately:
                records: Sequence[Record] = await self._records_until_end(entry.run_id)
            elif entry.status == "queued" and not message.task_id:
                return submitted_task(entry, message, length)
            else:  # the message was sent before, or its task exists already
                records = await self._runs.records(entry.run_id)
            return self._task(entry, records, length)

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with ErrorTranslation():
            entry = await self._start_or_steer(params, context)
            length = _history_length(params.configuration)
            updates = self._updates_for(entry, context, params)
            if params.message.task_id:
                events = self._snapshot_and_updates(entry, updates, length)
            else:
                events = self._updates(entry, updates)
                yield submitted_task(entry, params.message, length)
            async for event in events:
                yield event

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        with ErrorTranslation():
            validate_proto_required_fields(params)
            entry = await self._runs.entry(params.id)
            if entry.status in TERMINAL:
                raise UnsupportedOperationError("the task has ended; read it with GetTask")
            async for event in self._snapshot_and_updates(entry, self._updates_for(entry, context)):
                yield event

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        with ErrorTranslation():
            validate_proto_required_fields(params)
            validate_history_length(params)
            entry = await self._runs.entry(params.id)
            self._runs.attend(params.id)  # a caller without a stream polls
            records = await self._runs.records(params.id)
            task = self._task(entry, records, _history_length(params))
            return add_events(task, records) if _wants_events(context) else task

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        with ErrorTranslation():
            validate_proto_required_fields(params)
            entry = await self._entry_to("cancel", Right.MANAGE, params.id)
            if entry.status not in TERMINAL:
                entry = await self._runs.cancel(params.id)
                if entry.status not in TERMINAL - {"aborted"}:  # else it ended before the cancel
                    records = await self._runs.records(params.id)
                    task = self._task(entry, records)
                    return add_events(task, records) if _wants_events(context) else task
            raise TaskNotCancelableError(f"the task has ended already: {entry.status}")

    async def on_list_tasks(
        self, params: ListTasksRequest, context: ServerCallContext
    ) -> ListTasksResponse:
        """List tasks, newest status first.

        A page token holds the time and id of the previous page's last task, so it stays valid if
        that task changes or is deleted.
        """
        del context
        with ErrorTranslation():
            validate_history_length(params)
            if params.HasField("page_size"):
                validate_page_size(params.page_size)
            if params.status not in TaskState.values():
                known = ", ".join(TaskState.keys())
                raise InvalidParamsError(f"status is no state of a task: {known}")
            size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
            matching = await self._matching_entries(params, size + 1)
            page, has_more = matching.entries[:size], len(matching.entries) > size
            tasks = await asyncio.gather(*(self._listed_task(entry, params) for entry in page))
            return ListTasksResponse(
                tasks=[task for task in tasks if task is not None],
                next_page_token=_write_token(page[-1]) if has_more else "",
                page_size=size,
                total_size=matching.total,
            )

    async def on_get_extended_agent_card(
        self, params: object, context: ServerCallContext
    ) -> AgentCard:
        del params
        with ErrorTranslation():
            current_caller().require(Right.ASK)
            return extended_card(self._profile, context.state[BASE])

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        del context
        with ErrorTranslation():
            validate_proto_required_fields(params)
            entry = await self._runs.own_entry(params.task_id)
            await self._push_sender.check(params)
            return await self._put_push(entry, params)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        del context
        with ErrorTranslation():
            validate_proto_required_fields(params)
            for config in await self._push_configs(params.task_id):
                if config.id == params.id:
                    return config
            raise TaskNotFoundError("the task has no push notification config with this id")

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """List a task's configs; they are few, so all are on one page."""
        del context
        with ErrorTranslation():
            validate_proto_required_fields(params)
            configs = await self._push_configs(params.task_id)
            return ListTaskPushNotificationConfigsResponse(configs=configs)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        del context
        with ErrorTranslation():
            validate_proto_required_fields(params)
            await self._runs.own_entry(params.task_id)
            await self._push_sender.pushes.delete_push(params.task_id, params.id)

    @property
    def _push_sender(self) -> PushSender:
        if self._pushes is None:
            raise PushNotificationNotSupportedError
        return self._pushes

    async def _put_push(
        self, entry: RunEntry, config: TaskPushNotificationConfig
    ) -> TaskPushNotificationConfig:
        config.task_id, config.id = entry.run_id, config.id or entry.run_id
        await self._push_sender.put(entry, config)
        return shown(config)

    async def _push_configs(self, run_id: str) -> list[TaskPushNotificationConfig]:
        await self._runs.own_entry(run_id)
        pushes = await self._push_sender.pushes.pushes(run_id)
        return [shown(TaskPushNotificationConfig.FromString(push.config)) for push in pushes]

    async def _start_or_steer(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> RunEntry:
        """Start a task, or steer or answer the one that the message names (3.4.3)."""
        headers = context.state.get("headers", {})
        if self._replies and params.message.task_id and await self._replies.take(params.message):
            return await self._runs.entry(params.message.task_id)
        request = read_a2a_request(params, headers, self._profile.inputs)
        validate_history_length(params.configuration)
        message, push = params.message, None
        if params.configuration.HasField("task_push_notification_config"):
            push = params.configuration.task_push_notification_config
            await self._push_sender.check(push)
        if not message.task_id:
            entry = await self._runs.start(request)
        else:
            entry = await self._entry_to("steer", Right.ASK, message.task_id)
            if message.context_id not in ("", entry.session_id):
                raise InvalidParamsError("message.contextId is not the context of message.taskId")
            entry = await self._runs.send_message(entry.run_id, read_steering(message, request))
        if push:
            await self._put_push(entry, push)
        return entry

    async def _entry_to(self, what: What, right: Right, run_id: str) -> RunEntry:
        """Return a task's run for a change; a refused caller is written to the audit log."""
        try:
            return await self._runs.entry(run_id)
        except RunNotFound:
            with audited(current_caller(), right, what, run_id):
                raise

    def _task(self, entry: RunEntry, records: Sequence[Record], length: int | None = None) -> Task:
        return task_snapshot(entry, records, length, self._profile.output_schema)

    def _updates_for(
        self, entry: RunEntry, context: ServerCallContext, sent: SendMessageRequest | None = None
    ) -> TaskUpdates:
        """Return a task's updates in the form that suits the client that sent the message."""
        ends_whole = sent is not None and takes_last_update_for_whole(sent.message)
        is_whole = sent is not None and joins_by_blanks(sent, context.state.get("headers", {}))
        return TaskUpdates(
            entry,
            tells_events=_wants_events(context),
            ends_whole=ends_whole,
            has_pieces=not is_whole,
            schema=self._profile.output_schema,
        )

    async def _records_until_end(self, run_id: str) -> list[Record]:
        """Wait until a task ends or needs somebody; return its records (3.2.2).

        If this process shuts down first, return the records so far.
        """
        records: list[Record] = []
        async with aclosing(await self._runs.subscribe(run_id)) as batches:
            async for batch in batches:
                for item in batch:
                    collect(records, item)
                if open_waits(records):
                    break
        return records

    async def _snapshot_and_updates(
        self, entry: RunEntry, updates: TaskUpdates, length: int | None = None
    ) -> AsyncIterator[Event]:
        """Yield an existing task's snapshot, then its updates."""
        records = await self._runs.records(entry.run_id)
        list(updates.of(records))  # the snapshot has these already
        seq = records[-1].seq
        yield self._task(entry, records, length)
        for update in updates.events_of(records):
            yield update
        del records  # not held while a slow reader takes the rest
        async for update in self._updates(entry, updates, seq):
            yield update

    async def _updates(
        self, entry: RunEntry, updates: TaskUpdates, after: int = 0
    ) -> AsyncIterator[Update]:
        batches = await self._runs.subscribe(entry.run_id, after)
        async with self._attending(entry.run_id), aclosing(batches):
            async for batch in batches:
                if any(isinstance(item, Notice) and item.type == "reset" for item in batch):
                    return
                for update in updates.of(batch):
                    yield update

    @asynccontextmanager
    async def _attending(self, run_id: str) -> AsyncIterator[None]:
        """Keep a run's lease by attending it while a stream is open, and once more at the end."""

        async def attend() -> None:
            while True:
                self._runs.attend(run_id)
                await asyncio.sleep(ATTEND_SECONDS)

        task = asyncio.create_task(attend())
        try:
            yield
        finally:
            task.cancel()
            self._runs.attend(run_id)

    async def _matching_entries(self, params: ListTasksRequest, limit: int) -> RunPage:
        """Return up to `limit` runs that match the filters, in order, starting at the page token.

        A context has few runs, so filtering and sorting here is cheap.
        """
        before, since = _read_token(params.page_token), 0
        if params.HasField("status_timestamp_after"):
            since = -(-params.status_timestamp_after.ToNanoseconds() // _NANOSECONDS)
        statuses = [s for s, state in TASK_STATES.items() if params.status in {0, state}]
        if not params.context_id:
            return await self._runs.updated_entries(statuses, limit, since=since, before=before)
        entries = await self._runs.entries(params.context_id)
        matching = [e for e in entries if e.status in statuses and _position(e)[0] >= since]
        rest = [e for e in matching if before is None or _position(e) < before]
        return RunPage(sorted(rest, key=_position, reverse=True)[:limit], len(matching))

    async def _listed_task(self, entry: RunEntry, params: ListTasksRequest) -> Task | None:
        """Return a listed task; None if it is gone by now."""
        try:
            records = (await self._runs.records(entry.run_id))[: entry.seq]
        except (RunNotFound, RunLost):
            return None
        task = self._task(entry, records, _history_length(params))
        if not params.include_artifacts:
            task.ClearField("artifacts")
        return task


def _wants_events(context: ServerCallContext) -> bool:
    return extension.URI in context.requested_extensions


def _history_length(
    params: GetTaskRequest | ListTasksRequest | SendMessageConfiguration,
) -> int | None:
    return params.history_length if params.HasField("history_length") else None


def _position(entry: RunEntry) -> tuple[int, str]:
    """Return a task's sort key in the list: status time in milliseconds, and id."""
    return milliseconds(entry.updated), entry.run_id


def _read_token(token: str) -> tuple[int, str] | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token) if len(token) <= _MAX_TOKEN_CHARS else None
    if cursor is None or cursor.timestamp_ns is None:
        raise InvalidParamsError("pageToken is not one that this agent gave; leave it out")
    return cursor.timestamp_ns // _NANOSECONDS, cursor.task_id


def _write_token(entry: RunEntry) -> str:
    moment, run_id = _position(entry)
    return encode_list_tasks_cursor(ListTasksCursor(moment * _NANOSECONDS, run_id))
