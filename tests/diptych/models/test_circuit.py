"""When an endpoint is left alone, and when it is tried again (faults.md M2)."""

from diptych.models.health import (
    FAILURE_WINDOW,
    MAX_FAILURES,
    OPEN_TIME,
    CircuitBreaker,
)


class Now:
    """A clock that is set by hand."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def failed(circuit: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        assert circuit.allow()
        circuit.report_failure()


def test_failures_long_ago_do_not_count() -> None:
    now = Now()
    circuit = CircuitBreaker(now)
    failed(circuit, MAX_FAILURES - 1)
    now.seconds += FAILURE_WINDOW + 1
    failed(circuit, MAX_FAILURES - 1)
    assert circuit.allow()


def test_a_success_forgets_failures() -> None:
    circuit = CircuitBreaker(Now())
    failed(circuit, MAX_FAILURES - 1)
    circuit.report_success()
    failed(circuit, MAX_FAILURES - 1)
    assert circuit.allow()


def test_one_request_probes_an_open_circuit() -> None:
    now = Now()
    circuit = CircuitBreaker(now)
    failed(circuit, MAX_FAILURES)
    now.seconds += OPEN_TIME
    assert circuit.allow()
    assert not circuit.allow()
    circuit.report_success()
    assert circuit.allow()


def test_a_probe_that_fails_opens_it_again() -> None:
    now = Now()
    circuit = CircuitBreaker(now)
    failed(circuit, MAX_FAILURES)
    now.seconds += OPEN_TIME
    failed(circuit, 1)
    assert not circuit.allow()
    now.seconds += OPEN_TIME
    assert circuit.allow()
