"""One delegation: sent, followed, resumed when its connection is lost, and cancelled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

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

from diptych.a2a.claimed_use import ClaimedUse
from diptych.a2a.event_gate import EventGate
from diptych.a2a.events import ENDS_WAIT, read_event
from diptych.a2a.http_client import MALFORMED_ANSWER_ERRORS
from diptych.a2a.metadata import events_with, extension_value
from diptych.a2a.progress import Stage, TaskProgress
from diptych.a2a.send_errors import (
    explain,
    is_busy,
    is_lost,
    is_unreached,
    reason_of,
    unknown,
)
from diptych.a2a.time_limit import TimeLimit
from diptych.core import prompt
from diptych.core.errors import DelegationError
from diptych.core.messages import JSON, CallOutput, ChildRun, Usage, Used
from diptych.net.backoff import Backoff
from diptych.ports import ChildEvent, DelegationProgress, DelegationRequest

STREAM_END_TIMEOUT = 1.0  # seconds that a stream may take to end after its last event
INITIAL_POLL_DELAY, MAX_POLL_DELAY = 0.05, 1.0  # seconds between polls of a task without a stream
CANCEL_TIMEOUT = 5.0  # seconds
RECONNECT_SECONDS = 30.0  # in which an agent that went away must answer again
MAX_FOUND = 10  # tasks of one context; ours have one
NO_LIST_ERRORS = (
    NotImplementedError,  # of the SDK: A2A 0.3 has no ListTasks
    MethodNotFoundError,
    UnsupportedOperationError,
)

Found = TypeVar("Found")

_logger = logging.getLogger(__name__)


class DelegationTask:
    """A task that another agent is given, from its message to its end."""

    def __init__(
        self,
        request: DelegationRequest,
        url: str,
        client: Client,
        context: ClientCallContext,
        progress: DelegationProgress,
    ) -> None:
        """Take what is asked for, the agent's base URL and client, and whom to tell of its task.

        What happens in the task is told if the context asks for our extension.
        """
        self._agent = request.agent
        self._client = client
        self._context = context
        self._report = progress
        self.claims = ClaimedUse(request)
        self._progress = TaskProgress(url, self.claims)
        self._received = 0  # events of its streams
        self._sent_before = request.context_id if request.is_taken_over else ""
        self._is_known = False
        self._told_use: tuple[Usage | None, Used | None] = (None, None)
        self._events = EventGate(asyncio.get_running_loop().time)
        self._open_approvals: set[str] = set()  # calls at or below the agent
        self.time_limit = TimeLimit()
        self._refused_to_stop = False
        self._takes_events = HTTP_EXTENSION_HEADER in (context.service_parameters or {})

    async def run(self, request: SendMessageRequest) -> CallOutput:
        """Send the request and wait for the end of the task. Raises `DelegationError`."""
        try:
            await self._follow(self._client.send_message(request, context=self._context))
        except (A2AError, *MALFORMED_ANSWER_ERRORS) as error:
            is_begun = bool(self._progress.task_id)
            if not (self._progress.is_completed or (is_begun and is_lost(error))):
                self.claims.is_broken_off = is_begun
                refusal = "broke the task off" if is_begun else "did not take the task"
                raise explain(error, self._agent, refusal) from error
        if not self._progress.is_settled:
            self._progress.has_pieces |= not request.configuration.return_immediately
            await self._resume(is_streamed=not request.configuration.return_immediately)
        return self.output()

    @property
    def has_ended(self) -> bool:
        """Whether the task has ended: no more is needed from its agent for `output`."""
        return self._progress.stage is Stage.ENDED

    def output(self) -> CallOutput:
        """Give the result of a task that is settled; see `TaskProgress.call_output`."""
        return self._progress.call_output(self._agent)

    async def take_up(self, context_id: str, *, is_streamed: bool) -> CallOutput:
        """Go on with a task that another process has sent under this context.

        Raises `DelegationError`: `unknown` if its agent does not know of it, keeps no list of
        tasks, or cannot be asked.
        """
        found = await self._persistently(lambda: self._find(context_id))
        if found is None:
            raise DelegationError("unknown", prompt.OUTCOME_UNKNOWN)
        self._progress.has_pieces = is_streamed
        self._tell(self._progress.apply_task(found))
        if not self.has_ended:
            await self._resume(is_streamed=is_streamed)
        return self.output()

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
        """Ask an agent that may be starting anew, for a while. Raises `DelegationError`."""
        backoff = Backoff(INITIAL_POLL_DELAY, MAX_POLL_DELAY, budget=RECONNECT_SECONDS)
        while True:
            try:
                return await ask()
            except (A2AError, *MALFORMED_ANSWER_ERRORS) as error:
                is_away = is_unreached(error) or is_busy(error)
                if not is_away or backoff.is_exhausted:
                    raise unknown(reason_of(error, self._agent)) from error
                await asyncio.sleep(backoff.next_delay())

    @property
    def child(self) -> ChildRun:
        """What is known of the task by now."""
        return self._progress.child()

    async def cancel(self) -> None:
        """Tell the agent to stop, if it has named a task that has not ended. Never raises.

        A task that a former owner of the run has sent is looked for.
        """
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                if not await self._is_known_to_go_on():
                    return
                task = await self._client.cancel_task(
                    CancelTaskRequest(id=self._progress.task_id), context=self._context
                )
            self._progress.apply_report(task.metadata)  # it says what the task has used
            self._tell("")
            for told in self._events_with(task):  # decisions count, though they come late
                if (event := read_event(told)) and event.type == "approval_decided":
                    self._admit(told)
        except (A2AError, TimeoutError, *MALFORMED_ANSWER_ERRORS) as error:
            self._refused_to_stop = True
            _logger.info("agent %s did not cancel a task: %s", self._agent, type(error).__name__)

    async def _is_known_to_go_on(self) -> bool:
        is_unknown = not self._progress.task_id and self._sent_before
        if is_unknown and (found := await self._find(self._sent_before)):
            self._tell(self._progress.apply_task(found))
        return bool(self._progress.task_id) and not self.has_ended

    @property
    def stop_note(self) -> str:
        """Say what `cancel` could do so far."""
        if not self._progress.task_id:
            return "the agent named no task that could be stopped, and may go on"
        if self._refused_to_stop:
            return "the agent was told to stop and did not take that, so it may go on"
        return "the agent was told to stop"

    async def _follow(self, events: AsyncIterator[StreamResponse]) -> None:
        """Read a stream to its end; once the task is settled, its server must end it soon.

        It is not closed at once, because only a stream that ends leaves a connection to use again.
        """
        try:
            async with asyncio.timeout(None) as limit:
                async for event in events:
                    self._received += 1
                    self._tell_event(event)
                    self._tell(self._progress.apply(event))
                    ends_at = asyncio.get_running_loop().time() + STREAM_END_TIMEOUT
                    limit.reschedule(ends_at if self._progress.is_settled else None)
        except TimeoutError:
            pass

    async def _resume(self, *, is_streamed: bool) -> None:
        """Wait for the end of a task whose stream was lost, or that has none."""
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
        """Follow a task until its stream ends. Raises if that is lost before it told anything.

        An agent that has told something is not given up: when it is lost, its time begins anew.
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

    def _tell_event(self, update: StreamResponse) -> None:
        """Tell what happened in the task, if the update says so."""
        if not (self._takes_events and update.HasField("status_update")):
            return
        if (about := extension_value(update.status_update.metadata)) is not None:
            self._admit(about)

    async def _get(self, task_id: str) -> Task:
        """Read a task, and tell what happened in it that was missed."""
        task = await self._client.get_task(GetTaskRequest(id=task_id), context=self._context)
        for told in self._events_with(task):
            self._admit(told)
        return task

    def _events_with(self, task: Task) -> Sequence[JSON]:
        return events_with(task.metadata) if self._takes_events else ()

    def _admit(self, told: JSON) -> None:
        event = read_event(told)
        if event and (admitted := self._events.admit(event)):
            self.claims.show(admitted)
            self._report(admitted)
            self._note_approval(admitted)
        elif self._events.is_dropping or (isinstance(told, dict) and "event" in told and not event):
            self.claims.miss()

    def _note_approval(self, event: ChildEvent) -> None:
        """Keep whether calls wait for approval: the task's own records say so for all below it."""
        if event.path:
            return
        call_id = str(event.metadata.get("call_id", ""))
        if event.type == "approval_requested":
            self._open_approvals.add(call_id)
        elif event.type in ENDS_WAIT:
            self._open_approvals -= {
                each for each in self._open_approvals if f"{each}.".startswith(f"{call_id}.")
            }
        self._progress.waits_for_approval = bool(self._open_approvals)
        self.time_limit.set_paused(bool(self._open_approvals))

    def _tell(self, text: str) -> None:
        """Tell new text, and the task as soon as that is known, and when it has used more."""
        if text:
            self._report(text)
        used = self._progress.used
        if self._progress.task_id and (not self._is_known or used != self._told_use):
            self._is_known, self._told_use = True, used
            self._report(self._progress.child())
