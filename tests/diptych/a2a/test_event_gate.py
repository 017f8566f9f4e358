"""Events of a task are let in once each, and no more than can be looked at."""

from diptych.a2a.event_gate import BURST, MAX_EVENTS, MAX_PATHS, EventGate
from diptych.ports import ChildEvent


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def event(seq: int, *path: str, kind: str = "tool_call") -> ChildEvent:
    return ChildEvent(kind, path, seq)


def test_an_event_that_comes_again_is_left_out_for_each_run_by_itself() -> None:
    gate = EventGate(Clock())
    events = [event(1), event(2), event(1), event(2, "c"), event(2), event(2, "c"), event(3)]
    assert [e for e in events if gate.admit(e)] == [event(1), event(2), event(2, "c"), event(3)]


def test_what_comes_too_fast_is_dropped_and_counted() -> None:
    clock = Clock()
    gate = EventGate(clock)
    let_in = [gate.admit(event(n)) for n in range(1, BURST + 11)]
    assert let_in[BURST - 1] is not None
    assert let_in[BURST:] == [None] * 10
    clock.now = 1.0
    admitted = gate.admit(event(BURST + 50))
    assert admitted is not None
    assert admitted.skipped == 10


def test_approvals_are_let_in_however_fast_they_come() -> None:
    gate = EventGate(Clock())
    for n in range(1, BURST + 1):
        gate.admit(event(n))
    assert gate.admit(event(BURST + 1)) is None
    assert gate.admit(event(BURST + 2, kind="approval_requested")) is not None


def test_there_is_an_end_to_events_and_to_runs() -> None:
    clock = Clock()
    gate = EventGate(clock)
    for n in range(MAX_PATHS + 10):
        clock.now += 1
        admitted = gate.admit(event(1, f"c{n}"))
        assert (admitted is not None) == (n < MAX_PATHS)
    for n in range(MAX_EVENTS):
        clock.now += 1
        gate.admit(event(n + 2, "c1"))
    assert gate.admit(event(MAX_EVENTS + 2, "c1", kind="approval_requested")) is None
