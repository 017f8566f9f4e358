"""Calls of the caller's own tools: they end a reply, and the next request has their results.

A run that makes such calls has several parts, one for each reply. Parts follow from the log alone,
so every replica finds the same.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, cast

import orjson

from diptych.access.caller import ForeignRun
from diptych.core.catalog import CALLER_SERVER, SEPARATOR
from diptych.core.codec import Record, event_of, is_terminal
from diptych.core.errors import InvalidRequest, RunLost, RunNotFound
from diptych.core.events import RunRequested
from diptych.core.json_values import read_usage
from diptych.core.messages import Message, Usage
from diptych.core.text import well_formed
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.run_request import sha256
from diptych.ports.entries import RunEntry
from diptych.runs.request import RunRequest

_STARTS = frozenset({"tool_call", "delegation_request"})
_RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
_CALL_ID = re.compile(r"call_([0-9a-f]{8}-[0-9a-f]{32})_[0-9]{1,9}_[0-9]{1,9}")
_REPLACED = "the caller continued with other tools or instructions"


def wire_id(run_id: str, call_id: str) -> str:
    """Return the id of a caller's call for the caller; it names the run, whose id is random."""
    return f"call_{run_id.removeprefix('run-')}_{call_id.removeprefix('call_')}"


class Part:
    """The part of a run that one reply tells.

    It ends when the run ends, or when nothing but calls of the caller's tools can go on. `after` is
    the last record of the part before, `before` of the one before that.
    """

    def __init__(self) -> None:
        self.after = self.before = 0
        self.waiting: tuple[Record, ...] = ()
        """The calls whose results the caller owes; empty until that ends the part."""
        self.answered: tuple[Record, ...] = ()
        """The calls whose results this part begins with."""
        self._seq = 0
        self._open: dict[str, Record] = {}  # calls without a result, by id
        self._asked: set[str] = set()  # those whose results this part has asked for
        self._unstarted: set[str] = set()  # calls that needed approval, until they start or end
        self._usage = self._usage_before = Usage()

    def feed(self, record: Record) -> None:
        """Apply the next record; one that was applied already, or follows the part, is ignored."""
        if self.waiting or record.seq <= self._seq:
            return
        self._seq = record.seq
        call_id = str(record.metadata.get("call_id"))
        match record.event_type:
            case "model_reply" | "compacted":
                self._usage += read_usage(cast("Mapping[str, Any]", record.metadata["usage"]))
            case kind if kind in _STARTS:
                self._open[call_id] = record
                self._unstarted.discard(call_id)
            case kind if kind in _RESULTS:
                self._open.pop(call_id, None)
                self._asked.discard(call_id)
                self._unstarted.discard(call_id)
            case "approval_requested" if "path" not in record.metadata:
                self._unstarted.add(call_id)
            case "input_requested" if record.metadata["kind"] == "caller_tool":
                self._asked.add(call_id)
            case "input_received":
                self._asked.discard(call_id)
        if self._asked and self._asked == self._open.keys() and not self._unstarted:
            self.waiting = tuple(self._open.values())

    def forget(self, last_seq: int) -> None:
        """Drop the records after a seq, which the store has lost."""
        self._seq = min(self._seq, last_seq)
        self._open = {key: call for key, call in self._open.items() if call.seq <= last_seq}
        self._asked &= self._open.keys()

    def go_on(self) -> None:
        """Begin the next part; the calls that this one asked for are the caller's to answer."""
        self.before, self.after = self.after, self._seq
        self.answered, self.waiting, self._asked = self.waiting, (), set()
        self._usage_before = self._usage

    def usage(self, end: Record) -> Usage:
        """Return the tokens of this part's model calls; `end` is its last record."""
        stored: Any = end.metadata.get("usage")
        total = read_usage(stored) if is_terminal(end) else self._usage
        before = self._usage_before
        return Usage(
            total.prompt_tokens - before.prompt_tokens,
            total.completion_tokens - before.completion_tokens,
        )

    def reply_id(self, run_id: str) -> str:
        """Return the id of the part's reply: the run's for its first part."""
        return _reply_id(run_id, self.after)

    def id_before(self, run_id: str) -> str | None:
        """Return the id of the reply before, which this part continues."""
        return _reply_id(run_id, self.before) if self.after else None


class CallerCall:
    """A call of the caller's tool, from its record, as the caller sees it."""

    def __init__(self, called: Record) -> None:
        call: Any = called.content
        self.id = wire_id(called.run_id, _call_id(called))
        self.name = str(call["tool"]).removeprefix(f"{CALLER_SERVER}{SEPARATOR}")
        self.arguments = orjson.dumps(call["arguments"]).decode()


def _reply_id(run_id: str, after: int) -> str:
    return f"{run_id}.{after}" if after else run_id


def run_of(reply_id: str) -> str:
    """Return the run of a reply."""
    return reply_id.partition(".")[0]


async def part_of(reply_id: str, runs: GuardedRuns) -> tuple[Part, Record | None]:
    """Return the part that a reply tells, with the run's first record unless the part has it.

    Raises `RunNotFound`.
    """
    run_id, _, after = reply_id.partition(".")
    part = Part()
    if not after:
        return part, None
    records = await runs.records(run_id)
    for record in records:
        part.feed(record)
        if part.waiting:
            part.go_on()
            if after == str(part.after):
                return part, records[0]
    raise RunNotFound


class Continued(NamedTuple):
    """A run that goes on: the part to tell, and the run's first record."""

    entry: RunEntry
    part: Part
    first: Record


async def continue_run(
    runs: GuardedRuns, request: RunRequest, *, has_no_tools: bool
) -> Continued | None:
    """Give the results at a request's end to the run that waits for them.

    None if there are none, or if the request has other tools, instructions or another form than
    that run: it is a request for a run of its own then, and that run is cancelled. `has_no_tools`:
    it forbids calls. Raises `InvalidRequest` for results that no run waits for.
    """
    results = _results(request.messages)
    if not results:
        return None
    last = next(reversed(results))
    run_id = _run_id(last)
    try:
        entry = await runs.own_entry(run_id)
        records = await runs.records(run_id)
    except (RunNotFound, RunLost, ForeignRun) as error:
        raise _unknown(last) from error
    part, calls = _part_asked(records, results)
    key = request.idempotency_key  # OpenAI's libraries send none when they try again
    ids = {
        call_id: sha256(f"{call_id} {f'{key.key} {key.digest}' if key else results[wire]}".encode())
        for wire, call_id in calls.items()
    }
    first = cast("RunRequested", event_of(records[0]))
    refusal = _refusal(records, dict(ids))
    if has_no_tools or _differs(runs.admitted(request), first):
        if refusal is None:
            await runs.cancel(run_id, _REPLACED)
        return None
    if refusal:
        raise refusal
    if request.session_id not in (None, entry.session_id):
        message = "these results belong to a run of another session; send that session's id"
        raise InvalidRequest(message, param="session_id")
    received = {r.metadata["call_id"] for r in records if r.event_type == "input_received"}
    for wire, call_id in calls.items():
        if call_id not in received:
            await runs.answer_call(run_id, call_id, results[wire], ids[call_id])
    return Continued(entry, part, records[0])


def _results(messages: Sequence[Message]) -> dict[str, str]:
    """Return the results that end a request, by wire id; empty unless a run may wait for one.

    Raises `InvalidRequest` if only some are of that run.
    """
    last = [*takewhile(lambda message: message.role == "tool", reversed(messages))]
    results = {message.call_id or "": message.content for message in reversed(last)}
    by_run = {_run_id(wire): wire for wire in results}
    if by_run.keys() <= {""}:
        return {}
    if len(by_run) > 1:
        raise _unknown(by_run.get("") or next(iter(by_run.values())))
    return results


def _run_id(wire: str) -> str:
    """Return the run that a call's id names; "" for an id that is not ours."""
    form = _CALL_ID.fullmatch(wire)
    return f"run-{form[1]}" if form else ""


def _part_asked(
    records: Sequence[Record], results: Collection[str]
) -> tuple[Part, Mapping[str, str]]:
    """Return the part that follows the calls with these results, and those calls by wire id.

    Raises `InvalidRequest` unless there is a result of each, and no other.
    """
    run_id, given = records[0].run_id, set(results)
    part = Part()
    for record in records:
        part.feed(record)
        if not part.waiting:
            continue
        calls = {wire_id(run_id, call_id): call_id for call_id in map(_call_id, part.waiting)}
        part.go_on()
        if given.isdisjoint(calls):
            continue
        if more := sorted(given - calls.keys()):
            raise _unknown(more[0])
        if missing := [wire for wire in calls if wire not in given]:
            raise InvalidRequest(
                f"there is no result of the call {', '.join(missing)}; send the results of all "
                "calls of a reply together",
                code="missing_result",
            )
        return part, calls
    raise _unknown(min(given))


def _refusal(records: Sequence[Record], ids: dict[str, str]) -> InvalidRequest | None:
    """Return why calls take no results any more, if so.

    `ids` has the answers' ids by call: an answer that is logged with its id is a repeated one.
    """
    for record in records:
        about = record.metadata
        if record.event_type != "input_received" or about["call_id"] not in ids:
            continue
        if about.get("is_expired"):
            return InvalidRequest(
                "the result came too late: the run has gone on without it; read its answer at "
                f"/v1/runs/{record.run_id}",
                code="call_expired",
            )
        if about["input_id"] != ids.pop(str(about["call_id"])):
            return InvalidRequest(
                "these calls have their results, or a message took their place; read the run at "
                f"/v1/runs/{record.run_id}",
                code="call_answered",
            )
    if ids and is_terminal(records[-1]):
        return InvalidRequest(
            f"the run has ended; read it at /v1/runs/{records[0].run_id}", code="run_over"
        )
    return None


def _differs(request: RunRequest, first: RunRequested) -> bool:
    """Whether a request asks for something else than a run; what it leaves out stays the same."""
    schema = request.output_schema
    return (
        bool(request.tools and request.tools != first.tools)
        or bool(request.system and well_formed(request.system) != first.system)
        or (schema is not None and schema != first.output_schema)
    )


def _call_id(record: Record) -> str:
    return str(record.metadata["call_id"])


def _unknown(wire: str) -> InvalidRequest:
    return InvalidRequest(
        f"no call {wire[:100]!r} waits for a result of yours", code="call_not_found"
    )
