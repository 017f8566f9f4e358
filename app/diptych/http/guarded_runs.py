"""Runs and sessions, restricted to the current caller; routes use nothing else.

Without the right `read`, other callers' sessions, runs and events look unknown, in every protocol
and list (access.md "Sessions have owners").
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from diptych.access.caller import Caller, ForeignRun, current_caller
from diptych.access.grants import Right
from diptych.access.limits import RunLimiter
from diptych.core.codec import Record
from diptych.core.errors import RunLost, RunNotFound
from diptych.core.events import MessageQueued, Origin
from diptych.core.text import one_line
from diptych.http.audit import audited
from diptych.manifest.settings import ChatConfig
from diptych.net.memory_budget import current_share, record_size
from diptych.ports.entries import RunEntry, RunPage, SessionEntry
from diptych.ports.ids import owner_of, public_id
from diptych.ports.stores import EventLog, Sessions
from diptych.runs.inputs import CALLER_OUTPUT, InputReply
from diptych.runs.request import SCHEDULE, RunRequest
from diptych.runs.service import RunService
from diptych.runs.subscription import Subscription

MAX_FIRST_CHARS = 100  # of a message, as lists of sessions show it
MAX_OWN = 10_000  # runs of a caller's own that lists look at, and sessions of everybody's
PAGE_BYTES = 2**20  # estimated, up to which the next page of records is twice as long
_FIRST_PAGE, _MAX_PAGE = 16, 1_000  # records
_TIME_OF_JOB = re.compile(r"-[0-9]+$")  # ends the name of a CronJob's Job
_BATCH = 200  # entries that are looked through at once


class GuardedRuns:
    """`RunService` for the current caller. Every method raises `Forbidden` too."""

    def __init__(self, runs: RunService, limiter: RunLimiter, chat: ChatConfig) -> None:
        self._runs = runs
        self._limiter = limiter
        self._chat = chat

    async def start(self, request: RunRequest) -> RunEntry:
        """Start a run in one of the caller's sessions; see `RunService.start`.

        The request's `subject` is the caller's claim on whose behalf it acts: recorded, without
        rights, and ignored from unknown callers.

        Raises `LimitExceeded`.
        """
        caller = current_caller()
        with audited(caller, Right.ASK, "start") as noted:
            self._admit(caller)
            entry = await self._runs.start(_of_caller(self.admitted(request), caller))
            noted.about = entry.run_id
        return _public(entry)

    def admitted(self, request: RunRequest) -> RunRequest:
        """Return a request without what the manifest leaves out."""
        return replace(request, system="") if self._chat.caller_system == "off" else request

    async def resume(
        self, run_id: str, origin: Origin | None = None, max_steps: int | None = None
    ) -> RunEntry:
        """Resume one of the caller's runs; see `RunService.resume`. Raises `LimitExceeded`."""
        caller = current_caller()
        with audited(caller, Right.ASK, "resume", run_id):
            await self._check_own(caller, run_id)
            self._admit(caller)
            return _public(await self._runs.resume(run_id, origin, max_steps, caller.name))

    async def own_entry(self, run_id: str) -> RunEntry:
        """Return one of the caller's own runs. Raises `RunNotFound`, `ForeignRun`."""
        caller = current_caller()
        await self._check_own(caller, run_id)
        return await self.entry(run_id)

    async def entry(self, run_id: str) -> RunEntry:
        """Return a run that the caller may see. Raises `RunNotFound` for any other."""
        return _public(await self._visible(run_id))

    async def records(self, run_id: str, after: int = 0) -> Sequence[Record]:
        """Return the records of a visible run.

        They count towards the request's memory share. Raises `Overloaded`.
        """
        await self._check_visible(run_id)
        found: list[Record] = []
        share = current_share()
        async for page in pages(partial(self._runs.records, run_id), after):
            share.admit(sum(map(record_size, page)))
            found += page
        return found

    async def page(self, run_id: str, after: int, limit: int) -> Sequence[Record]:
        """Return some records of a run that `entry` or `entries` has returned."""
        return await self._runs.records(run_id, after, limit)

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        """List the runs that the caller may see; see `EventLog.entries`."""
        caller = current_caller()
        stored = caller.stored_id(session_id) if session_id is not None else None
        if stored or _sees_all(caller):
            found = await self._runs.entries(stored, status=status, before=before, limit=limit)
        else:
            page = partial(self._runs.entries, None, status=status)
            if before is not None:
                await page(before=before, limit=1)  # raises for an unknown one
                await self._visible(before)
            found = await own_entries(caller, page, before, limit)
        return [_public(entry) for entry in found]

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        """List the runs that the caller may see; see `EventLog.updated_entries`."""
        caller = current_caller()
        if _sees_all(caller):
            page = await self._runs.updated_entries(statuses, limit, since=since, before=before)
            return RunPage([_public(entry) for entry in page.entries], page.total)
        entries = await self.entries(limit=MAX_OWN)
        listed = [
            entry for entry in entries if entry.status in statuses and _milliseconds(entry) >= since
        ]
        listed.sort(key=_position, reverse=True)
        rest = [entry for entry in listed if before is None or _position(entry) < before]
        return RunPage(rest[:limit], len(listed))

    async def subscribe(self, run_id: str, after: int = 0) -> Subscription:
        """Follow a run that the caller may see; see `RunService.subscribe`."""
        await self._check_visible(run_id)
        return self._runs.subscribe(run_id, after)

    def attend(self, run_id: str) -> None:
        """Record that the caller waits for a visible run; see `RunService.attend`."""
        self._runs.attend(run_id)

    def has_subscribers(self, run_id: str) -> bool:
        """Whether a run has subscribers at this process."""
        return self._runs.has_subscribers(run_id)

    async def send_message(self, run_id: str, message: MessageQueued) -> RunEntry:
        """Send a message to a run of the caller's own; see `RunService.send_message`."""
        caller = current_caller()
        with audited(caller, Right.ASK, "follow-up" if message.is_follow_up else "steer", run_id):
            await self._check_own(caller, run_id)
            said = replace(message, subject=str(caller.subject)) if caller.subject else message
            return _public(await self._runs.send_message(run_id, said))

    async def answer_call(self, run_id: str, call_id: str, result: str, answer_id: str) -> None:
        """Answer a call of the caller's tool in one of its runs; see `RunService.answer`."""
        caller = current_caller()
        with audited(caller, Right.ASK, "answer", run_id) as noted:
            noted.call = call_id
            await self._check_own(caller, run_id)
            content = {CALLER_OUTPUT: result}
            given = InputReply("accept", content, caller.name, input_id=answer_id)
            await self._runs.answer(run_id, call_id, given)
            noted.decision = noted.outcome = "accept"

    async def queued_messages(self, run_id: str) -> Sequence[MessageQueued] | None:
        """Return the queued messages of a visible run."""
        await self._check_visible(run_id)
        return await self._runs.queued_messages(run_id)

    async def clear_messages(self, run_id: str) -> Sequence[MessageQueued]:
        """Drop the queued messages of one of the caller's runs, and return them."""
        caller = current_caller()
        with audited(caller, Right.ASK, "clear", run_id):
            await self._check_own(caller, run_id)
            return await self._runs.clear_messages(run_id, caller.name)

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> RunEntry:
        """Cancel a run of the caller's own, or any by right; see `RunService.cancel`."""
        with audited(current_caller(), Right.MANAGE, "cancel", run_id):
            await self._visible(run_id, Right.MANAGE)
            return _public(await self._runs.cancel(run_id, reason))

    async def delete(self, run_id: str) -> None:
        """Forget a run of the caller's own, or any by right; see `RunService.delete`."""
        with audited(current_caller(), Right.MANAGE, "delete-run", run_id):
            await self._visible(run_id, Right.MANAGE)
            await self._runs.delete(run_id)

    def _admit(self, caller: Caller) -> None:
        """Check that the caller may start a run. Raises `Forbidden`, `LimitExceeded`."""
        caller.require(Right.ASK)
        if caller.subject:
            owner = caller.owner
            self._limiter.admit(str(caller.subject), lambda: self._runs.unfinished_of(owner))

    async def _check_own(self, caller: Caller, run_id: str) -> None:
        """Check that the run is the caller's own. Raises `Forbidden`, `RunNotFound`."""
        caller.require(Right.ASK)
        entry = await self._visible(run_id)
        if not caller.owns(entry.session_id):
            raise ForeignRun

    async def _check_visible(self, run_id: str) -> None:
        """Raise `RunNotFound` for another caller's run; callers with `read` skip the lookup."""
        if not _sees_all(current_caller()):
            await self._visible(run_id)

    async def _visible(self, run_id: str, foreign: Right = Right.READ) -> RunEntry:
        """Return one of the caller's runs, or any with the right `foreign`."""
        caller = current_caller()
        entry = await self._runs.entry(run_id)
        if caller.owns(entry.session_id):
            if caller.rights:
                return entry
        elif caller.may(foreign):
            return entry
        elif caller.may(Right.READ):
            caller.require(foreign)
        raise RunNotFound


class GuardedSessions:
    """Sessions, restricted to the current caller."""

    def __init__(self, log: EventLog, sessions: Sessions) -> None:
        self._log = log
        self._sessions = sessions

    async def count_events(self, session_id: str | None) -> int:
        """Count the events of a session, or of all that the caller may see."""
        caller = current_caller()
        if session_id is not None:
            return await self._sessions.count_events(caller.stored_id(session_id))
        if _sees_all(caller):
            return await self._sessions.count_events()
        return sum(s.events for s in await self._own_sessions(caller))

    async def sessions(self, limit: int) -> tuple[Sequence[SessionEntry], int]:
        """List visible sessions, and count all of them."""
        caller = current_caller()
        if _sees_all(caller):
            return await self._sessions.sessions(limit), await self._sessions.count_sessions()
        own = await self._own_sessions(caller)
        return own[-limit:], len(own)

    async def first_words(self, session: SessionEntry) -> str:
        """Return the beginning of the first message of a session that `sessions` listed."""
        runs = await self._log.entries(session.session_id)
        try:
            first = await self._log.read(runs[-1].run_id, limit=1) if runs else ()
        except (RunLost, RunNotFound):
            return ""
        text = first[0].content if first else ""
        return one_line(text, MAX_FIRST_CHARS) if isinstance(text, str) else ""

    async def _own_sessions(self, caller: Caller) -> list[SessionEntry]:
        """Return the caller's sessions among the 10,000 used last."""
        found = await self._sessions.sessions(MAX_OWN)
        return [session for session in found if caller.owns(session.session_id)]

    async def delete(self, session_id: str) -> bool:
        """Delete a session of the caller's own, or any by right; False if there is none."""
        caller = current_caller()
        stored = caller.stored_id(session_id, Right.MANAGE)
        with audited(caller, Right.MANAGE, "delete", session_id):
            if not caller.owns(stored):
                caller.require(Right.MANAGE)
            return await self._sessions.delete(stored)


async def own_entries(
    caller: Caller,
    page: Callable[..., Awaitable[Sequence[RunEntry]]],
    before: str | None,
    limit: int | None,
) -> Sequence[RunEntry]:
    """Return the first `limit` (None: all) of the caller's runs in the list that `page` reads.

    Raises `RunNotFound` if `page` does not know the run `before`.
    """
    own: list[RunEntry] = []
    while limit is None or len(own) < limit:
        found = await page(before=before, limit=_BATCH)
        own += [entry for entry in found if caller.owns(entry.session_id)]
        if len(found) < _BATCH:
            break
        before = found[-1].run_id
    return own[:limit]


async def pages(
    read: Callable[[int, int], Awaitable[Sequence[Record]]], after: int = 0
) -> AsyncGenerator[Sequence[Record]]:
    """Yield the records after a seq in pages: short ones first, as their size is unknown."""
    count = _FIRST_PAGE
    while page := await read(after, count):
        yield page
        if len(page) < count:
            return
        after, count = page[-1].seq, _next_count(count, page)


async def pages_back(
    read: Callable[[int, int], Awaitable[Sequence[Record]]], end: int
) -> AsyncGenerator[Sequence[Record]]:
    """Yield the records up to a seq, the last page first; see `pages`."""
    count = _FIRST_PAGE
    while end > 0:
        start = max(0, end - count)
        page = await read(start, end - start)
        yield page
        end, count = start, _next_count(count, page)


def _next_count(count: int, page: Sequence[Record]) -> int:
    """Return the next page's size, in records."""
    is_small = sum(map(record_size, page)) < PAGE_BYTES
    return min(2 * count, _MAX_PAGE) if is_small else max(1, count // 2)


def _of_caller(request: RunRequest, caller: Caller) -> RunRequest:
    """Return the request with its session and subject set to the caller's."""
    if not caller.subject:
        return replace(request, subject="") if request.subject else request
    subject, key = str(caller.subject), request.idempotency_key
    if caller.subject.runs_schedules and key:
        job = key.key.partition(":")[2]
        request = replace(request, notes={**request.notes, SCHEDULE: _TIME_OF_JOB.sub("", job)})
    if request.subject:
        return replace(request, owner=caller.owner, caller=subject)
    return replace(request, owner=caller.owner, subject=subject)


def _sees_all(caller: Caller) -> bool:
    return caller.may(Right.READ)


def _public(entry: RunEntry) -> RunEntry:
    if not owner_of(entry.session_id):
        return entry
    return replace(entry, session_id=public_id(entry.session_id))


def _milliseconds(entry: RunEntry) -> int:
    return int(entry.updated * 1000)


def _position(entry: RunEntry) -> tuple[int, str]:
    return _milliseconds(entry), entry.run_id
