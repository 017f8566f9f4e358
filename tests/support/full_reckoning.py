"""What is wrong at the end of one seed of the simulation of everything."""

from collections import Counter, defaultdict

from support.full_hooks import is_denied, is_rewritten

from diptych.budgets.recorded_use import recorded_use
from diptych.core.codec import decode, encode
from diptych.core.messages import Used

STARTS = frozenset({"tool_call", "delegation_request"})
RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
OUTPUTS = frozenset({"tool_result", "delegation_response"})


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
            if r.event_type == "user_message":
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
