"""Holds what all actors of a chaos test saw against what is promised (faults.md §2).

A history is a list of events, dicts as in JSON lines: `{"t": …, "actor": …, "kind": …, …}` with `t`
in seconds of one monotonic clock (CLOCK_MONOTONIC is one for all processes of a machine). Of one
actor they stand in the order in which they happened; what is compared over actors is `t`.

    accepted        by who asked: run, session, text (of the question, a new one each time), seconds
                    (that a run may take), canary (of its session, optional)
    record          by who reads the log at the end, run by run in the order of their coming:
                    run, session, seq, event_type, content; `t` is when it was written
    reader          by a reader, under one name over all its connections: run, seq, event_type and
                    content of a record that it was told
    reset           by a reader: run, last_seq; what it was told after that is void
    reader_ended    by a reader: run; it was told that nothing more comes
    tool_started    by a tool: key (another for each call that a model asked for), repeatable
    answered        by a model: text (of the question), answer (the whole text that it gave)
    asked_once      by a client that asked with a key: key, body (its digest), text (of the
                    question, another for each body), run ('' if it was refused for its body)
    told_once       by a client that asked with a key, at the end: key, answer (as it was told)
    lost            by a store, of records that nobody put back: run, keys (of the calls that were
                    asked for in them), end (seq and type of the run's end among them, or nothing)
    claimed         by a store: session, token; from here on it is the fence of the session
    write_accepted  by a store: run, session, token, seqs
    conversation    by who reads the log at the end: session, said (the users' messages in it)
    trouble         by whoever made it: what, until (the `t` at which it is over)

Kinds that a test cannot see are left out, and what needs them is not checked.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

TERMINAL = frozenset({"completed", "failed", "aborted", "max_steps"})
Event = dict[str, Any]
History = Sequence[Event]


def problems(history: History, allowance: float) -> list[str]:
    """Say all that is wrong; nothing if every promise was kept.

    `allowance` is for how many seconds a run may be unfinished beyond its own, which count from
    its turn or from the end of the last trouble: a lease and 5 s, and what the machine was late.
    """
    return [
        *_ends(history, allowance),
        *_numbers(history),
        *_readers(history),
        *_answers(history),
        *_tools(history),
        *_writers(history),
        *_keys(history),
        *_canaries(history),
        *_conversations(history),
    ]


def _of(history: History, kind: str) -> list[Event]:
    return [event for event in history if event["kind"] == kind]


def _logs(history: History) -> dict[str, list[Event]]:
    logs = defaultdict(list)
    for event in _of(history, "record"):
        logs[event["run"]].append(event)
    return logs


def _accepted(history: History) -> list[Event]:
    """List the runs that were accepted, each once, in the order of their coming."""
    order = {run: n for n, run in enumerate(_logs(history))}
    first = {event["run"]: event for event in reversed(_of(history, "accepted"))}
    return sorted(first.values(), key=lambda e: order.get(e["run"], len(order)))


def _ends(history: History, allowance: float) -> Iterator[str]:
    """G1: an accepted run has exactly one terminal record, in time."""
    logs = _logs(history)
    calm = max((event["until"] for event in _of(history, "trouble")), default=0.0)
    free: dict[str, float] = {}  # when a session's runs before this one had ended
    for run in _accepted(history):
        ends = [record for record in logs[run["run"]] if record["event_type"] in TERMINAL]
        if len(ends) != 1:
            yield f"G1: {run['run']} has {len(ends)} terminal records"
            continue
        if logs[run["run"]][-1] is not ends[0]:
            yield f"G1: {run['run']} goes on after its terminal record"
        begun = max(run["t"], free.get(run["session"], 0.0))
        free[run["session"]] = max(begun, ends[0]["t"])
        late = ends[0]["t"] - max(begun, calm) - run["seconds"] - allowance
        if late > 0:
            yield f"G1: {run['run']} ended {late:.1f} s too late"


def _numbers(history: History) -> Iterator[str]:
    """G2: the records of a run have seq 1..n."""
    for run, log in _logs(history).items():
        seqs = [record["seq"] for record in log]
        if seqs != list(range(1, len(seqs) + 1)):
            yield f"G2: {run} has the records {seqs}"


def _readers(history: History) -> Iterator[str]:
    """G2: every reader sees the run's records, each once, in order, to the end.

    Who heard an end that the store has lost does not listen any more, and cannot be told.
    """
    logs = _logs(history)
    ends = [(event["run"], *event["end"]) for event in _of(history, "lost") if event["end"]]
    told: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in history:
        key = event["actor"], event.get("run", "")
        if event["kind"] == "reset":
            told[key] = [e for e in told[key] if e["seq"] <= event["last_seq"]]
        elif event["kind"] == "reader":
            told[key].append(event)
        elif event["kind"] == "reader_ended" and _facts(told[key]) != _facts(logs[key[1]]):
            last = told[key][-1] if told[key] else {"seq": 0, "event_type": "nothing"}
            if (key[1], last["seq"], last["event_type"]) not in ends:
                seqs = [e["seq"] for e in told[key]]
                yield f"G2: {key[0]} was told {seqs} of {key[1]}, or other words"


def _facts(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    return [(event["seq"], event["event_type"], event["content"]) for event in events]


def _answers(history: History) -> Iterator[str]:
    """G2: the text after the last reset is the answer, and the model's, whole."""
    given = defaultdict(set)
    for event in _of(history, "answered"):
        given[event["text"]].add(event["answer"])
    whole = {run["run"]: given.get(run["text"]) for run in _of(history, "accepted")}
    for run, log in _logs(history).items():
        text = ""
        for record in log:
            if record["event_type"] == "answer_reset":
                text = ""
            elif record["event_type"] == "text":
                text += record["content"]
            elif record["event_type"] == "agent_response":
                if record["content"] != text:
                    yield f"G2: the answer of {run} is not what its readers were told"
                if (answers := whole.get(run)) and text not in answers:
                    yield f"G2: the answer of {run} is none that a model gave"
                text = ""  # a run that was sent a message meanwhile goes on with another turn


def _tools(history: History) -> Iterator[str]:
    """G3: a call that must not be repeated is started at most once.

    Where the store lost the reply that asked for a call, nobody knows that it was started.
    """
    lost = _by_key(history, "lost", "keys")
    for key, starts in _by_key(history, "tool_started").items():
        times = [event["t"] for event in starts if not event["repeatable"]]
        losses = sum(event["t"] <= times[-1] for event in lost[key]) if times else 0
        if len(times) > 1 + losses:
            yield f"G3: {key} was started {len(times)} times"


def _writers(history: History) -> Iterator[str]:
    """G4: what the store took was written under the newest fence of the session."""
    fence: dict[str, str] = {}
    for event in history:
        if event["kind"] == "claimed":
            fence[event["session"]] = event["token"]
        elif event["kind"] == "write_accepted" and fence[event["session"]] != event["token"]:
            yield f"G4: a stale write of {event['actor']} to {event['run']} was accepted"


def _keys(history: History) -> Iterator[str]:
    """G5: a key and a body are one run and one answer; any other body is refused."""
    logs = _logs(history)
    begun: dict[str, set[str]] = defaultdict(set)  # the runs of a question
    for run, log in logs.items():
        if log[0]["event_type"] == "user_message":
            begun[log[0]["content"]].add(run)
    for key, asked in _by_key(history, "asked_once").items():
        taken = [event for event in asked if event["run"]]
        bodies = {event["body"] for event in taken}
        runs = {event["run"] for event in taken}
        if len(bodies) > 1:
            yield f"G5: {key} was taken with {len(bodies)} bodies"
        if bodies & {event["body"] for event in asked if not event["run"]}:
            yield f"G5: {key} was refused with the body that it stands for"
        for text in {event["text"] for event in taken}:
            runs |= begun[text]
        if len(runs) > 1:
            yield f"G5: {key} has begun {len(runs)} runs"
    for key, told in _by_key(history, "told_once").items():
        if len({event["answer"] for event in told}) > 1:
            yield f"G5: {key} has had several answers"


def _by_key(history: History, kind: str, name: str = "key") -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in _of(history, kind):
        for key in event[name] if name == "keys" else [event[name]]:
            found[key].append(event)
    return found


def _canaries(history: History) -> Iterator[str]:
    """I8: what is secret to a session is in no other."""
    canaries = {e["session"]: e["canary"] for e in _of(history, "accepted") if e.get("canary")}
    for record in _of(history, "record"):
        text = str(record["content"])
        for session, canary in canaries.items():
            if session != record["session"] and canary in text:
                yield f"I8: {record['run']} of {record['session']} knows the canary of {session}"


def _conversations(history: History) -> Iterator[str]:
    """A session's conversation is its runs that began, in the order of their coming."""
    logs = _logs(history)
    asked: dict[str, list[str]] = defaultdict(list)
    for run in _accepted(history):
        if any(record["event_type"] == "offered" for record in logs[run["run"]]):
            asked[run["session"]].append(run["text"])
    for event in _of(history, "conversation"):
        expected = asked[event["session"]]
        if event["said"] != expected:
            yield f"the conversation of {event['session']} is {event['said']}, not {expected}"
