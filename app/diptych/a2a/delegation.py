"""One delegation: sent, followed, resumed when its connection is lost, and cancelled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from a2a.client import Client, ClientCallContext
from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.errors import A2AError, MethodNotFoundError, UnsupportedOperationError
from google.protobuf.struct_pb2 import Struct

from diptych.a2a.events import read_event
from diptych.a2a.extension import TaskReport, metadata_under_uri, read_report
from diptych.a2a.http_client import MALFORMED_ANSWER_ERRORS
from diptych.a2a.progress import TaskProgress
from diptych.a2a.send_errors import explain, is_busy, is_lost, is_unreached, reason_of, unknown
from diptych.core import prompt
from diptych.core.errors import DelegationError
from diptych.core.messages import CallOutput, ChildRun
from diptych.core.spending import as_used
from diptych.core.waits import ANSWERS, note_waits
from diptych.net.backoff import Backoff
from diptych.ports import ChildEvent, DelegationProgress, DelegationRequest

STREAM_END_TIMEOUT = 1.0  # seconds that a stream may take to end after its last event
INITIAL_POLL_DELAY, MAX_POLL_DELAY = 0.05, 1.0  # seconds between polls of a task without a stream
CANCEL_TIMEOUT = 5.0  # seconds
RECONNECT_SECONDS = 30.0  # in which an agent that went away must answer again
MAX_FOUND = 10  # tasks of one context; ours have one
MAX_EVENTS = 20_000  # of one delegation; later ones are dropped
NO_LIST_ERRORS = (
    NotImplementedError,  # of the SDK: A2A 0.3 has no ListTasks
    MethodNotFoundError,
    UnsupportedOperationError,
)

Found = TypeVar("Found")

_logger = logging.getLogger(__name__)


class TimeLimit:
    """A delegation's time limit, paused while a call below waits for somebody.

    The caller's own deadline is not paused: it ends the delegation with its run.
    """

    def __init__(self) -> None:
        self._limit: asyncio.Timeout | None = None
        self._left: float | None = None  # seconds, while it stands still

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Raise `TimeoutError` if the block takes longer, not counting pauses."""
        try:
            async with asyncio.timeout(seconds) as self._limit:
                yield
        finally:
            self._limit = None  # the answer to a cancel may still tell of a decision

    def set_paused(self, is_paused: bool) -> None:
        if self._limit is None or is_paused == (self._left is not None):
            return
        now = asyncio.get_running_loop().time()
        if is_paused:
            self._left = max(0.0, (self._limit.when() or now) - now)
            self._limit.reschedule(None)
        else:
            self._limit.reschedule(now + (self._left or 0.0))
            self._left = None


class DelegationTask:
    """A task at another agent, from its message to its end.

    `url` is the agent's base URL; `progress` receives the task's updates. Events and usage reports
    are read only if `context` activates our extension.
    """

    def __init__(
        self,
        request: DelegationRequest,
        url: str,
        client: Client,
        context: ClientCallContext,
        progress: DelegationProgress,
    ) -> None:
        self.time_limit = TimeLimit()
        self._agent = request.agent
        self._budget = request.budget
        self._client = client
        self._context = context
        self._report = progress
        self._progress = TaskProgress(url)
        self._received = 0  # events of its streams
        self._sent_before = request.context_id if request.is_taken_over else ""
        self._told: tuple[str, TaskReport] = ("", TaskReport())
        self._is_child = HTTP_EXTENSION_HEADER in (context.service_parameters or {})
        self._seen: dict[tuple[str, ...], int] = {}  # the newest seq of each run, by its path
        self._event_count = 0
        self._waiting: set[str] = set()  # calls at or below the agent
        self._refused_to_stop = False

    @property
    def has_ended(self) -> bool:
        """Whether the task has ended, so that `output` is complete."""
        return self._progress.has_ended

    @property
    def child(self) -> ChildRun:
        """The task as last seen."""
        return self._progress.child()

    @property
    def stop_note(self) -> str:
        """Return what `cancel` has achieved so far, for the call's result."""
        if not self._progress.task_id:
            return "the agent named no task that could be stopped, and may go on"
        if self._refused_to_stop:
            return "the agent did not confirm the cancellation, so it may still be running"
        return "the agent was cancelled"

    def output(self) -> CallOutput:
        """Return the result of a settled task; see `TaskProgress.call_output`."""
        return self._progress.call_output(self._agent)

    async def run(self, request: SendMessageRequest) -> CallOutput:
        """Send the request and wait for the end of the task. Raises `DelegationError`."""
        progress, is_streamed = self._progress, not request.configuration.return_immediately
        try:
            await self._follow(self._client.send_message(request, context=self._context))
        except (A2AError, *MALFORMED_ANSWER_ERRORS) as error:
            is_begun = bool(progress.task_id)
            if not (progress.is_completed or (is_begun and is_lost(error))):
                if is_begun and self._budget:  # it may still work
                    progress.report = replace(progress.report, used=as_used(self._budget))
                refusal = "broke the task off" if is_begun else "did not take the task"
                raise explain(error, self._agent, refusal) from error
        if not progress.is_settled:
            progress.has_pieces |= is_streamed
            await self._resume(is_streamed=is_streamed)
        return self.output()

    async def take_up(self, context_id: str, *, is_streamed: bool) -> CallOutput:
        """Resume a task that another process sent in this context.

        Raises `DelegationError` with the code `unknown` if the agent has no such task, cannot list
        tasks, or cannot be reached.
        """
        found = await self._persistently(lambda: self._find(context_id))
        if found is None:
            raise DelegationError("unknown", prompt.OUTCOME_UNKNOWN)
        self._progress.has_pieces = is_streamed
        self._tell(self._progress.apply_task(found))
        if not self.has_ended:
            await self._resume(is_streamed=is_streamed)
        return self.output()

    async def cancel(self) -> None:
        """Cancel the task at the agent unless it has ended or has no id yet.

        Never raises. If a former owner of the run sent the task, look it up first.
        """
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                is_unknown = not self._progress.task_id and self._sent_before
                if is_unknown and (found := await self._find(self._sent_before)):
                    self._tell(self._progress.apply_task(found))
                if not self._progress.task_id or self.has_ended:
                    return
                request = CancelTaskRequest(id=self._progress.task_id)
                task = await self._client.cancel_task(request, context=self._context)
            self._read_metadata(task.metadata, only=ANSWERS)
            self._tell("")
        except (A2AError, TimeoutError, *MALFORMED_ANSWER_ERRORS) as error:
            self._refused_to_stop = True
            _logger.info("agent %s did not cancel a task: %s", self._agent, type(error).__name__)

    async def _find(self, context_id: str) -> Task | None:
        request = ListTasksRequest(context_id=context_id, page_size=MAX_FOUND)
        try:
            listed = await self._client.list_tasks(request, context=self._context)
        except NO_LIST_ERRORS:
            return None
        tasks = [task for task in listed.tasks if task.context_id == context_id]
        if not tasks:
            return None
        self._progress.task_id = tasks[0].id
        self._tell("")
        return await self._get(tasks[0].id)

    async def _persistently(self, ask: Callable[[], Awaitable[Found]]) -> Found:
        """Retry a request while the agent may be restarting. Raises `DelegationError`."""
        backoff = Backoff(INITIAL_POLL_DELAY, MAX_POLL_DELAY, budget=RECONNECT_SECONDS)
        while True:
            try:
                return await ask()
            except (A2AError, *MALFORMED_ANSWER_ERRORS) as error:
                is_away = is_unreached(error) or is_busy(error)
                if not is_away or backoff.is_exhausted:
                    raise unknown(reason_of(error, self._agent)) from error
                await asyncio.sleep(backoff.next_delay())

    async def _follow(self, events: AsyncIterator[StreamResponse]) -> None:
        """Read a stream to its end.

        Once the task is settled the server gets a moment to end it: only then can the connection be
        reused.
        """
        try:
            async with asyncio.timeout(None) as limit:
                async for event in events:
                    self._received += 1
                    if event.HasField("status_update"):
                        self._read_metadata(event.status_update.metadata)
                    if event.HasField("task"):
                        self._read_metadata(event.task.metadata)
                    self._tell(self._progress.apply(event))
                    ends_at = asyncio.get_running_loop().time() + STREAM_END_TIMEOUT
                    limit.reschedule(ends_at if self._progress.is_settled else None)
        except TimeoutError:
            pass

    async def _resume(self, *, is_streamed: bool) -> None:
        """Wait for the end of a task whose stream was lost, or that never had one."""
        task_id = self._progress.task_id
        if not task_id:
            raise unknown(f"agent {self._agent} answered nothing")
        polls = Backoff(INITIAL_POLL_DELAY, MAX_POLL_DELAY)
        while True:
            if is_streamed:
                await self._persistently(lambda: self._subscribe(task_id))
            await self._persistently(lambda: self._look(task_id))
            if self._progress.is_settled:
                return
            await asyncio.sleep(polls.next_delay())

    async def _subscribe(self, task_id: str) -> None:
        """Follow a task until its stream ends.

        Raises if the stream is lost before its first event; after that, each loss starts a new
        retry period.
        """
        request, received = SubscribeToTaskRequest(id=task_id), self._received
        try:
            await self._follow(self._client.subscribe(request, context=self._context))
        except (A2AError, *MALFORMED_ANSWER_ERRORS) as error:
            if is_unreached(error) and self._received == received:
                raise  # any other error: a task that has ended cannot be subscribed to

    async def _look(self, task_id: str) -> None:
        if not self._progress.is_settled:
            self._tell(self._progress.apply_task(await self._get(task_id)))

    async def _get(self, task_id: str) -> Task:
        task = await self._client.get_task(GetTaskRequest(id=task_id), context=self._context)
        self._read_metadata(task.metadata)
        return task

    def _read_metadata(self, metadata: Struct, *, only: Collection[str] = ()) -> None:
        """Read a child's usage report and events from a status update or a whole task."""
        about: Any = metadata_under_uri(metadata) if self._is_child else None
        if not isinstance(about, dict):
            return
        known, report = self._progress.report, read_report(about)
        self._progress.report = TaskReport(
            report.usage or known.usage, report.code, report.used or known.used
        )
        events = about.get("events")
        told = [{"event": each} for each in events] if isinstance(events, list) else [about]
        for event in map(read_event, told):
            if event and (not only or event.type in only):
                self._tell_event(event)

    def _tell_event(self, event: ChildEvent) -> None:
        """Pass an event on once; a new subscription repeats earlier events."""
        is_known = event.seq and event.seq <= self._seen.get(event.path, 0)
        if is_known or self._event_count >= MAX_EVENTS:
            return
        self._event_count += 1
        if event.seq:
            self._seen[event.path] = event.seq
        self._report(event)
        if not event.path:  # its own records tell of what waits below it, too
            note_waits(self._waiting, event.type, event.metadata)
            self._progress.is_waiting = bool(self._waiting)
            self.time_limit.set_paused(bool(self._waiting))

    def _tell(self, text: str) -> None:
        """Pass on new text, the task once its id is known, and new usage."""
        if text:
            self._report(text)
        known = (self._progress.task_id, self._progress.report)
        if known[0] and known != self._told:
            self._told = known
            self._report(self._progress.child())
