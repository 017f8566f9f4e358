"""Follows a run: yields typed events, and asks for decisions on waiting calls."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Literal, TypeAlias

from diptych.core.codec import Record
from diptych.core.errors import AlreadyDecided, InvalidRequest, RunEnded
from diptych.core.messages import JSONObject
from diptych.core.reading.strict_json import decode_json
from diptych.core.text import well_formed
from diptych.core.waits import note_waits
from diptych.library.events import Approval, Event, EventReader
from diptych.library.hooks import call_function
from diptych.library.results import waiting_calls
from diptych.runs.answers import collect
from diptych.runs.approvals import DecisionRequest
from diptych.serve.hosted_agent import HostedAgent

Decision: TypeAlias = Literal["approve", "reject"] | Mapping[str, Any]
"""A decision on a waiting call.

A mapping has a `decision`: `approve`; `reject`, perhaps with a `reason` for the model; `edit` with
other `arguments`; or `replace` with another `call`, `{"tool", "arguments"}` or `{"agent", "task"}`.
"""
OnApproval: TypeAlias = Callable[[Approval], Decision | Awaitable[Decision | None] | None]
"""Decides on a call that waits; None leaves it waiting. Functions that are not async run in a
thread."""

_FIELDS = frozenset({"decision", "reason", "arguments", "call"})
_RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
_CALLS = frozenset({"tool_call", "delegation_request", "approval_decided"})


class Following:
    """Follows one run from its beginning.

    It asks `on_approval` about calls that wait. Where nobody decides it stops, if it
    `stops_waiting`: then `approvals` are those calls, else it is empty.
    """

    def __init__(
        self,
        hosted: HostedAgent,
        run_id: str,
        on_approval: OnApproval | None = None,
        *,
        stops_waiting: bool = True,
    ) -> None:
        self.records: list[Record] = []
        self.approvals: tuple[Approval, ...] = ()
        self._runs = hosted.runs
        self._run_id = run_id
        self._on_approval = on_approval
        self._stops_waiting = stops_waiting
        self._open: set[str] = set()  # ids of calls that wait
        self._undecided: set[str] = set()  # of those that nobody would decide on

    async def events(self) -> AsyncGenerator[Event]:
        """Yield the run's events until its end, or until it stops at calls that wait."""
        reader = EventReader()
        async with aclosing(self._runs.subscribe(self._run_id)) as batches:
            async for batch in batches:
                for item in batch:
                    collect(self.records, item)
                    if isinstance(item, Record):
                        note_waits(self._open, item.event_type, item.metadata)
                    for event in reader.read([item]):
                        yield event
                waiting = await self._waiting() if self._open else ()
                if waiting and not await self._is_decided(waiting) and self._stops_waiting:
                    self.approvals = waiting
                    return

    async def _waiting(self) -> tuple[Approval, ...]:
        """Return the calls that wait, once nothing else of the run goes on."""
        waiting = waiting_calls(self.records)
        if not waiting or self._calls_under_way({each.call_id for each in waiting}):
            return ()
        entry = await self._runs.entry(self._run_id)
        return waiting if entry.seq == self.records[-1].seq else ()

    def _calls_under_way(self, waiting: set[str]) -> set[str]:
        """Return the calls without a result that were made or decided on and wait for nobody."""
        under_way: set[str] = set()
        for record in self.records:
            call_id = str(record.metadata.get("call_id", "")).partition(".")[0]
            if record.event_type in _CALLS:
                under_way.add(call_id)
            elif record.event_type in _RESULTS:
                under_way.discard(call_id)
        return under_way - {call_id.partition(".")[0] for call_id in waiting}

    async def _is_decided(self, waiting: tuple[Approval, ...]) -> bool:
        """Ask about the calls that wait; whether one of them was decided on."""
        is_decided = False
        for approval in waiting:
            if self._on_approval is None or approval.call_id in self._undecided:
                continue
            decision = await call_function(self._on_approval, approval)
            if decision is None:
                self._undecided.add(approval.call_id)
                continue
            with suppress(AlreadyDecided, RunEnded):  # it has expired, or somebody was faster
                await self._runs.answer(self._run_id, approval.call_id, decision_request(decision))
            is_decided = True
        return is_decided


def check_on_approval(given: object) -> None:
    """Raise `InvalidRequest` for anything but a function or None."""
    if given is not None and not callable(given):
        raise InvalidRequest(
            "on_approval: must be a function of an Approval, such as lambda approval: "
            f'"approve" (got {given!r:.60})',
            param="on_approval",
        )


def decision_request(decision: Decision) -> DecisionRequest:
    """Read a decision. Raises `InvalidRequest`."""
    asked: Mapping[str, Any] = {"decision": decision} if isinstance(decision, str) else decision
    if not isinstance(asked, Mapping) or asked.keys() - _FIELDS:
        raise _no_decision(decision)
    kind = asked.get("decision")
    if kind not in {"approve", "reject", "edit", "replace"}:
        raise _no_decision(decision)
    arguments, call = (_plain(name, asked.get(name)) for name in ("arguments", "call"))
    return DecisionRequest(kind, well_formed(str(asked.get("reason") or "")), arguments, call)


def _no_decision(given: object) -> InvalidRequest:
    return InvalidRequest(
        'a decision is "approve", "reject", or a mapping such as {"decision": "reject", "reason": '
        f'"…"}} or {{"decision": "edit", "arguments": {{…}}}} (got {given!r:.60})',
        param="decision",
    )


def _plain(name: str, given: JSONObject | None) -> Any:  # noqa: ANN401 - JSON
    """Return a value as records will have it. Raises `InvalidRequest` if they cannot hold it."""
    try:
        found = decode_json(json.dumps(given))
    except (TypeError, ValueError, RecursionError) as error:
        found = ValueError(str(error))
    if isinstance(found, ValueError):
        raise InvalidRequest(f"{name}: {found}", param=name, code="invalid_arguments")
    return found
