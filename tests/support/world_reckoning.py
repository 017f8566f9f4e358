"""What is wrong at the end of one simulated seed (`world`): promises, and views of the log."""

import re
from collections import Counter

from support.history import TERMINAL, problems
from support.shared_store import LEASE_SECONDS

from diptych.core.approval_records import approvals_of
from diptych.core.codec import decode
from diptych.core.reducer import replay
from diptych.core.rendering import with_whole_calls
from diptych.core.state import Phase

ALLOWANCE = LEASE_SECONDS + 5


def wrong_in(world):
    """Give all that is wrong in a world that has ended; nothing if every promise was kept."""
    note_log(world.store)
    note_lost(world)
    return [
        *(f"{name} has a queue" for name, s in world.store.sessions.items() if s.queue),
        *([] if world.losing else resets(world.store)),
        *problems(world.store.history, ALLOWANCE),
        *untrue(world.store),
        *unheard(world),
        *undecided(world),
    ]


def note_log(store):
    for run_id, run in store.runs.items():
        for r in run.records:
            about = {"seq": r.seq, "event_type": r.event_type, "content": r.content}
            store.note("log", "record", run=run_id, session=run.session_id, **about)
            store.history[-1]["t"] = r.timestamp - 1_000_000.0
    for name in store.sessions:
        said = [m.content for m in store.conversation(name) if m.content.startswith("Q ")]
        store.note("log", "conversation", session=name, said=said)


def note_lost(world):
    """Note what nobody has put back of what the store lost."""
    for t, run_id, lost in world.lost:
        there = world.store.runs[run_id].records
        if gone := [record for record in lost if record not in there]:
            keys = [key for record in gone for key in _asked_in(record)]
            end = next(((r.seq, r.event_type) for r in gone if r.event_type in TERMINAL), ())
            world.store.note("store", "lost", run=run_id, keys=keys, end=end)
            world.store.history[-1]["t"] = t


def _asked_in(record):
    """Give the keys of the calls that a model's reply asks for."""
    if record.event_type != "model_reply":
        return []
    native = [call["arguments"] for call in record.metadata.get("tool_calls", ())]
    found = re.findall(r'"key": "([^"]+)"', "\n".join([record.content, *native]))
    return list(dict.fromkeys(found))


def resets(store):
    readers = [e["actor"] for e in store.history if e["kind"] == "reset"]
    return [f"{name} was told of a loss" for name in readers]


def unheard(world):
    """Look for each message that was taken: it joined once, or its run never began."""
    for run_id, message_id in world.steered:
        records = world.store.runs[run_id].records
        count = sum(r.metadata.get("message_id") == message_id for r in records)
        has_begun = any(r.event_type == "offered" for r in records)
        if count > 1 or (has_begun and not count):
            yield f"{run_id} heard {message_id} {count} times"


def undecided(world):
    """Look at each approval: it was decided once, and nothing was made without."""
    for run_id, run in world.store.runs.items():
        decisions = {}
        for record in run.records:
            call_id = record.metadata.get("call_id")
            if record.event_type == "approval_decided":
                if call_id in decisions:
                    yield f"{run_id} has two decisions on {call_id}"
                decisions[call_id] = record.content
            elif record.event_type == "tool_call":
                must_ask = world.expires is not None and record.content["tool"] == "charge"
                if must_ask and decisions.get(call_id) not in {"approve", "edit", "replace"}:
                    yield f"{run_id} made {call_id}, which nobody approved"
        if approvals := [a.call_id for a in approvals_of(run.records) if a.is_open]:
            yield f"{run_id} ended, and {approvals} wait"
        yield from _forgotten(world, run_id, run, decisions)


def _forgotten(world, run_id, run, decisions):
    """Look for decisions that were taken, and are not on record."""
    for decided_run, call_id, decision in () if world.losing else world.decided:
        if decided_run != run_id or decisions.get(call_id) == decision:
            continue
        if not _stands_below_only(world, run, call_id, decision):
            yield f"{run_id} took {decision} for {call_id}, and has {decisions.get(call_id)}"


def _stands_below_only(world, run, call_id, decision):
    """Whether a run was ended over a decision that the agent below had recorded.

    Nothing follows a terminal event, so what comes up after it stands on no record here.
    """
    approval = next(a for a in approvals_of(run.records) if a.call_id == call_id)
    is_cut = approval.closed.metadata.get("error") == "interrupted"
    if approval.decided or not is_cut or run.records[-1].event_type not in {"aborted", "failed"}:
        return False
    of_child = approval.requested.metadata.get("child", {})
    below = world.below.store.runs[of_child["task_id"]].records if of_child else ()
    _, _, id_below = call_id.partition(".")
    return any(
        r.event_type == "approval_decided"
        and (r.metadata["call_id"], r.content) == (id_below, decision)
        for r in below
    )


def untrue(store):
    """Hold what is kept of each session against its log."""
    for name, session in store.sessions.items():
        said = []
        for run_id in session.runs:
            records = store.runs[run_id].records
            try:
                run = replay(
                    decode(r.event_type, r.content, r.metadata, store.get_blob) for r in records
                )
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                yield f"{run_id} cannot be replayed: {error!r}"
                continue
            said += run.messages
            if run.phase is not Phase.DONE or run.pending:
                yield f"{run_id} is not done"
            calls = Counter(r.metadata["call_id"] for r in records if r.event_type == "tool_call")
            if any(count > 1 for count in calls.values()):
                yield f"{run_id} has records of a call that was begun twice"
        if list(with_whole_calls(said)) != said:
            yield f"{name} has a call without a result"
        if tuple(said) != store.conversation(name):
            yield f"what is kept of {name} is not what its runs said"
