"""The interface to runs for the rest of the application: start, subscribe, signal, read.

A run is tied to no connection or process: subscribe here or at another replica.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from diptych.core.catalog import Catalog
from diptych.core.codec import NOT_IN_MEMORY_VIEW, TERMINAL, Record, shown
from diptych.core.errors import (
    DiptychError,
    InvalidRequest,
    NotResumable,
    Overloaded,
    RunNotFound,
)
from diptych.core.events import Aborted, MessageQueued, Origin, QueueKind, RunRequested
from diptych.core.messages import JSON, Message
from diptych.core.state import conversation
from diptych.net.memory_budget import MemoryBudget, text_size
from diptych.ports import ChildRef
from diptych.ports.entries import IdempotencyKey, Opened, RunEntry, RunPage
from diptych.ports.ids import owned_session, run_id_of
from diptych.ports.stores import Stores
from diptych.runs.active_run import Stage
from diptych.runs.answers import whole_answer
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.executor import attend
from diptych.runs.lease_keeper import LeaseKeeper
from diptych.runs.request import (
    RunRequest,
    check_steps,
    check_tools,
    continues_answer,
    find_resumable,
    owned_key,
    requested_session,
    resume_key,
    resuming_event,
    run_requested,
)
from diptych.runs.run_log import Observer, UnreadableRecord, rebuild
from diptych.runs.run_signals import RunSignals
from diptych.runs.scheduler import Scheduler
from diptych.runs.subscription import Subscription, Subscriptions
from diptych.runs.waits import Reply

INTERRUPTED = "interrupted by a newer message of its session"
_logger = logging.getLogger(__name__)


class RunService:
    """All runs of one agent, in this process and in its store."""

    def __init__(
        self,
        definition: AgentDefinition,
        backends: Backends,
        stores: Stores,
        observers: Sequence[Observer] = (),
        memory_budget: MemoryBudget | None = None,
    ) -> None:
        self._max_runs = definition.max_runs
        self._max_steps = definition.settings.max_steps
        self._when_busy = definition.when_busy
        self._stores = stores
        self._memory_budget = memory_budget or MemoryBudget()
        self._scheduler = Scheduler(definition, backends, stores, observers, self._memory_budget)
        self._lease_keeper = LeaseKeeper(self._scheduler, stores)
        self._subscriptions = Subscriptions(stores, self._scheduler.find)
        self._signals = RunSignals(stores, self._scheduler, backends.agents)
        self._agents = backends.agents
        self._tools = backends.tools
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether new runs are refused."""
        return self._is_closing

    @property
    def active_count(self) -> int:
        """The number of queued and executing runs in this process."""
        return self._scheduler.active_count

    def unfinished_of(self, owner: str) -> int:
        """The number of an owner's unfinished runs in this process."""
        return self._scheduler.count_in(owned_session(owner, ""))

    def start_background(self) -> None:
        """Start renewing leases and taking sessions over, if the store is shared. Call once."""
        self._lease_keeper.start()

    async def start(self, request: RunRequest) -> RunEntry:
        """Start a run: it is logged when this returns, and continues without subscribers.

        In a busy session it waits, is refused with `SessionBusy`, or cancels earlier runs. Raises
        `InvalidRequest`, `StoreError`, and `Overloaded` without capacity or at shutdown.
        """
        try:
            return await self._start(request)
        except NotResumable:  # the session has continued: fork it
            said = await self._said_up_to(request.follows)
            return await self._start(replace(request, session_id=None, follows=""), said)

    def _catalog_now(self) -> Catalog:
        tools, servers = self._tools.snapshot()
        agents, missing = self._agents.snapshot()
        return Catalog(tools, agents, (*servers, *missing))

    async def _said_up_to(self, run_id: str) -> tuple[Message, ...]:
        """Return a session's conversation at the end of a run."""
        log = self._stores.log
        entry = await log.entry(run_id)
        if entry.status not in TERMINAL:
            raise InvalidRequest(
                "the response is not finished; wait until it ends or cancel it, then continue it",
                param="previous_response_id",
                code="response_not_finished",
            )
        said: tuple[Message, ...] = ()
        for each in reversed(await log.entries(entry.session_id)):
            said = conversation(await rebuild(await log.read(each.run_id), self._stores, said))
            if each.run_id == run_id:
                break
        return said

    async def _start(self, request: RunRequest, said: tuple[Message, ...] = ()) -> RunEntry:
        """Start a run; `said` is the conversation of a forked session."""
        self._admit()
        check_steps(request.max_steps, max(self._max_steps, request.most_steps))
        if request.tools:
            check_tools(request.tools, self._catalog_now())
        stores = self._stores
        requested = requested_session(request)
        is_known = requested is not None and await stores.sessions.session_exists(requested)
        last_answer = None
        if requested and is_known and continues_answer(request):
            last_answer = await self._last_answer(requested)
        is_known = is_known or bool(said)
        first = run_requested(request, is_known=is_known, last_answer=last_answer)
        first = replace(first, earlier=(*said, *first.earlier))
        when_busy = request.when_busy or self._when_busy
        session_id = requested or owned_session(request.owner, f"session-{stores.clock.token()}")
        opened = await self._open(
            first,
            session_id,
            owned_key(request),
            is_new_session=requested is None,
            if_idle=when_busy == "reject",
            if_newest=request.follows or None,
        )
        if requested and opened.is_new and when_busy == "interrupt":
            await self._interrupt(opened.entry)
        return opened.entry

    async def resume(
        self,
        run_id: str,
        origin: Origin | None = None,
        max_steps: int | None = None,
        subject: str = "",
    ) -> RunEntry:
        """Resume a run that failed or was aborted, as a new run of its session.

        Repeated requests return the same new run. Raises `NotResumable`, `InvalidRequest` for too
        many steps, and as `start` and `entry` do.
        """
        self._admit()
        check_steps(max_steps, self._max_steps)
        records, resumed = await find_resumable(self._stores.log, run_id)
        if resumed:
            return resumed
        first = resuming_event(records, origin or Origin(), max_steps)
        first = replace(first, subject=subject)
        return (await self._open(first, records[0].session_id, resume_key(run_id))).entry

    async def _open(  # noqa: PLR0913 - all options of a run
        self,
        first: RunRequested,
        session_id: str,
        key: IdempotencyKey | None,
        *,
        is_new_session: bool = False,
        if_idle: bool = False,
        if_newest: str | None = None,
    ) -> Opened:
        """Log a new run in a session, whose task at the scheduler then executes it."""
        stores, scheduler = self._stores, self._scheduler
        run_id = run_id_of(stores.log.epoch, stores.clock.token())
        active = scheduler.register(
            run_id, session_id, is_new_session=is_new_session, subject=first.subject
        )
        try:
            opened = await active.log.open(first, key, if_idle=if_idle, if_newest=if_newest)
        except BaseException:
            if active.stage is Stage.QUEUED:  # it may have begun although the reply was lost
                scheduler.remove(active)
            raise
        if opened.is_new:
            scheduler.schedule(active, opened.lease, first.origin.seconds)
        else:
            scheduler.remove(active)
        return opened

    async def _interrupt(self, newest: RunEntry) -> None:
        """Cancel the earlier runs of the session, and wait for them for a while."""
        entries = await self._stores.log.entries(newest.session_id)
        opened = [entry.run_id for entry in entries]
        older = entries[opened.index(newest.run_id) + 1 :] if newest.run_id in opened else ()
        running = [entry.run_id for entry in older if entry.status not in TERMINAL]
        cancels = (self._signals.cancel(run_id, INTERRUPTED) for run_id in running)
        for outcome in await asyncio.gather(*cancels, return_exceptions=True):
            if isinstance(outcome, DiptychError):  # the new run is logged all the same
                _logger.warning("a run of %s was not cancelled: %s", newest.session_id, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _last_answer(self, session_id: str) -> str | None:
        """Return the answer of a session's newest run, if any."""
        log = self._stores.log
        newest = await log.entries(session_id, limit=1)
        return whole_answer(await log.read(newest[0].run_id)) if newest else None

    def subscribe(self, run_id: str, after: int = 0) -> Subscription:
        """Subscribe to a run's items after a seq. Use with `contextlib.aclosing`."""
        return self._subscriptions.subscribe(run_id, after)

    def has_subscribers(self, run_id: str) -> bool:
        """Whether a run has subscribers in this process."""
        return self._subscriptions.has_subscribers(run_id)

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> RunEntry:
        """Abort a run; see `RunSignals.cancel`."""
        return await self._signals.cancel(run_id, reason)

    async def send_message(self, run_id: str, message: MessageQueued) -> RunEntry:
        """Add a message to a run; see `RunSignals.send_message`. Also raises `Overloaded`."""
        self._memory_budget.check(text_size(message.message), message.subject)
        return await self._signals.send_message(run_id, message)

    async def queued_messages(self, run_id: str) -> Sequence[MessageQueued] | None:
        """Return a run's queued messages; None if only a newer version can read it."""
        try:
            return await self._signals.queued_messages(run_id)
        except UnreadableRecord:
            return None

    async def clear_messages(
        self, run_id: str, subject: str = "", only: QueueKind | None = None
    ) -> Sequence[MessageQueued]:
        """Drop a run's queued messages and return them; see `RunSignals.clear`."""
        return await self._signals.clear(run_id, subject, only)

    async def answer(self, run_id: str, call_id: str, reply: Reply) -> Sequence[Record]:
        """Decide on a waiting call, or answer its question; see `RunSignals.answer`."""
        return _shown(await self._signals.answer(run_id, call_id, reply))

    def attend(self, run_id: str) -> None:
        """Note that a run's caller is still waiting."""
        attend(self._stores.feed, run_id, self._scheduler.find(run_id))

    async def child_tree(self, agent: str, child: ChildRef) -> JSON:
        """Fetch the run of a delegation from its agent; see `Agents.run_tree`."""
        return await self._agents.run_tree(agent, child)

    async def waiting_runs(self, limit: int, before: str | None = None) -> Sequence[RunEntry]:
        """List the runs with calls that wait for approval or input, newest first."""
        return await self.entries(status="input-required", before=before, limit=limit)

    async def entry(self, run_id: str) -> RunEntry:
        return await self._stores.log.entry(run_id)

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        """List runs, newest first; see `EventLog.entries`."""
        return await self._stores.log.entries(session_id, status=status, before=before, limit=limit)

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        """List runs by the time of their last record; see `EventLog.updated_entries`."""
        return await self._stores.log.updated_entries(statuses, limit, since=since, before=before)

    async def delete(self, run_id: str) -> None:
        """Delete a run, and its messages in the session.

        Raises `RunNotFound`, `RunLost`, and `InvalidRequest` if it has not ended.
        """
        records = await self._stores.log.read(run_id)
        shown = sum(record.event_type not in NOT_IN_MEMORY_VIEW for record in records)
        if not await self._stores.sessions.delete_run(records[0].session_id, run_id, shown):
            raise RunNotFound

    async def records(
        self, run_id: str, after: int = 0, limit: int | None = None
    ) -> Sequence[Record]:
        """Return a run's records, without what only its calls may see (`codec.shown`)."""
        return _shown(await self._stores.log.read(run_id, after, limit))

    def stop_admitting(self) -> None:
        """Refuse new runs and takeovers; active runs continue."""
        self._is_closing = True
        self._lease_keeper.takes_over = False

    async def close(self, seconds: float = 0.0) -> None:
        """Wait up to `seconds` for active runs; then hand them over, or abort them.

        Without a shared store they are aborted.
        """
        self.stop_admitting()
        await self._scheduler.wait_idle(seconds)
        self._subscriptions.close()
        self._signals.close()
        aborted = Aborted("the agent is shutting down")
        await self._scheduler.shut_down(if_not_handed_over=aborted)
        await self._lease_keeper.close()

    def _admit(self) -> None:
        if self._is_closing:
            raise Overloaded("this agent is shutting down; try again later", retry_after=5)
        if self.active_count >= self._max_runs:
            raise Overloaded(
                f"this agent has reached its limit of {self._max_runs} unfinished runs; retry later"
            )


def _shown(records: Sequence[Record]) -> Sequence[Record]:
    return list(map(shown, records))
