"""What is wrong at the end of a simulated seed: of the world of owners, and of the full one."""

import re
import zlib
from collections import Counter, defaultdict

from support.history import TERMINAL, problems
from support.shared_store import LEASE_SECONDS

from diptych.budgets.recorded_use import recorded_use
from diptych.core.codec import decode, encode
from diptych.core.messages import Used
from diptych.core.reducer import replay
from diptych.core.rendering import with_whole_calls
from diptych.core.state import Phase
from diptych.core.waits import waits_of

ALLOWANCE = LEASE_SECONDS + 5
STARTS = frozenset({"tool_call", "delegation_request"})
RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
OUTPUTS = frozenset({"tool_result", "delegation_response"})


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
        *unanswered(world),
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
        if approvals := [a.call_id for a in waits_of(run.records, "approval") if a.is_open]:
            yield f"{run_id} ended, and {approvals} wait"
        yield from _forgotten(world, run_id, run, decisions)


def unanswered(world):
    """Look at each question: no answer is lost, none came twice, and nobody waits for one."""
    for run_id, content in () if world.losing else world.answered:
        if (count := world.logged(run_id).count(content)) != 1:
            yield f"{run_id} has an answer {count} times"
    for run_id in world.misled:
        yield f"{run_id} told a tool an answer that is on no record"
    for run_id, run in world.store.runs.items():
        if asked := [w.call_id for w in waits_of(run.records, "input") if w.is_open]:
            yield f"{run_id} ended, and {asked} wait for input"


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
    approval = next(a for a in waits_of(run.records, "approval") if a.call_id == call_id)
    is_cut = approval.closed.metadata.get("error") == "interrupted"
    if approval.answered or not is_cut or run.records[-1].event_type not in {"aborted", "failed"}:
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


# The full world


def is_denied(key):
    """Whether the hook denies a call: as the key says, that it has from the model."""
    return zlib.crc32(key.removesuffix("~").encode()) % 5 == 0


def is_rewritten(key):
    """Whether the hook gives a call another key, and has not yet."""
    return not key.endswith("~") and zlib.crc32(key.encode()) % 5 == 1


def wrong_in_all(world):
    """Give all that is wrong; nothing if every promise was kept."""
    return [
        *(wrong for store in (world.store, world.below.store) for wrong in _records(store)),
        *world.held,
        *_sums(world),
        *_hooked(world),
        *_repeats(world),
        *_tasks(world),
        *_messages(world),
    ]


def _records(store):
    """Each record is written as it was read; each call that was begun has one result."""
    for run_id, run in store.runs.items():
        for r in run.records:
            event = decode(r.event_type, r.content, r.metadata, store.get_blob)
            event_type, content, metadata = encode(event)
            if (event_type, content, metadata) != (r.event_type, r.content, dict(r.metadata)):
                yield f"{run_id} {r.seq}: {r.event_type} is written otherwise than it was read"
        started = Counter(r.metadata["call_id"] for r in run.records if r.event_type in STARTS)
        ended = Counter(r.metadata["call_id"] for r in run.records if r.event_type in RESULTS)
        for call_id, count in (started | ended).items():
            if started[call_id] > 1 or ended[call_id] != 1:
                yield f"{run_id}: {call_id} has {ended[call_id]} results of {count}"


def _sums(world):
    """What is on record is counted, and no call was made beyond a budget by more than one."""
    by_session = defaultdict(list)
    for run in world.store.runs.values():
        by_session[run.session_id].append(run.records)
    whole = [records for runs in by_session.values() for records in runs]
    rows = [("the day", world.of_day, whole, "day:")]
    rows += [(n, world.of_session, runs, f"session:{n}") for n, runs in by_session.items()]
    for name, budget, runs, prefix in rows:
        keys = [k for k in world.ledger._accounts if k.startswith(prefix)]
        if budget and keys:  # two of a day if midnight has passed
            counted = sum((world.ledger._accounts[key].used for key in keys), Used())
            yield from (
                f"{name}: {what}" for what in _of_accounts(counted, budget, runs, len(keys))
            )


def _of_accounts(counted, budget, runs, accounts):
    recorded = sum(map(recorded_use, runs), Used())
    for limit in ("model_calls", "tool_calls"):
        if (there := getattr(counted, limit)) < getattr(recorded, limit):
            yield f"the ledger has {there} {limit} of {getattr(recorded, limit)}"
        bound = getattr(budget, limit)
        if bound is not None and getattr(recorded, limit) > (bound + 1) * accounts:
            yield f"{getattr(recorded, limit)} {limit} were made, of {bound} in {accounts} accounts"


def _hooked(world):
    """Nothing was made that a hook denied or changed, nothing told that one has not seen."""
    if "beforeCall" in world.points:
        keys = [event["key"] for event in world.store.history if event["kind"] == "tool_started"]
        unwanted = [key for key in keys if key != "poke" and (is_denied(key) or is_rewritten(key))]
        yield from (f"{key} was made, and the hook did not want it" for key in unwanted)
    for run_id, run in world.store.runs.items():
        for r in run.records:
            place, says = f"{run_id} {r.seq}", r.content
            is_output = "afterCall" in world.points and r.event_type in OUTPUTS
            is_answer = "validateAnswer" in world.points and r.event_type == "agent_response"
            if is_output and not says.startswith("seen "):
                yield f"{place}: the hook has not seen {says!r}"
            if is_answer and (run_id, says) not in world.passed_answers:
                yield f"{place}: no hook let {says!r} pass"


def _repeats(world):
    """Who is obsessed by one call makes it twice at most, until a message comes."""
    for run_id, run in world.store.runs.items() if world.is_obsessed else ():
        pokes = 0
        for r in run.records:
            if r.event_type in {"user_message", "agent_response"}:  # a follow-up is logged early
                pokes = 0
            elif r.event_type == "tool_call" and r.content["tool"] == "poke":
                pokes += 1
                if pokes > 2:
                    yield f"{run_id} poked again, {pokes} times in a row"


def _tasks(world):
    """Each delegation was begun once, whoever took it up."""
    tasks = Counter(run.records[0].content for run in world.below.store.runs.values())
    for task, count in tasks.items():
        if count > 1:
            yield f"{task!r} was begun {count} times"


def _messages(world):
    """Each message that was taken stands in the conversation once, if its run has begun."""
    for run_id, name in world.steered:
        run = world.store.runs[run_id]
        if not name.startswith("now") or all(r.event_type != "offered" for r in run.records):
            continue
        said = [m for m in world.store.conversation(run.session_id) if m.role == "user"]
        count = sum(m.content.splitlines().count(f"more {name}") for m in said)
        if count != 1:
            yield f"{run_id} has {name} {count} times in its conversation"
