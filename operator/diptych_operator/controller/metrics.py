"""The operator's metrics, for Prometheus."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """All metrics of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge = partial(Gauge, registry=self.registry)
        self._reconciles = Counter(
            "diptych_operator_reconciles",
            "Reconciles of Agents by how they ended.",
            ["result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "diptych_operator_reconcile_seconds",
            "How long reconciles took.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._requests = Counter(
            "diptych_operator_api_requests",
            "Requests to the Kubernetes API by method and status; 0 is no answer.",
            ["method", "status"],
            registry=self.registry,
        )
        self._agents = gauge(
            "diptych_operator_agents",
            "Agents by the status of their Ready condition.",
            ["ready"],
        )
        self._conditions = gauge(
            "diptych_operator_bad_conditions",
            "Agents by each of their conditions that tells of something wrong.",
            ["condition", "reason"],
        )
        self._staleness = gauge(
            "diptych_operator_watch_silence_seconds",
            "The longest time that a watch has been silent.",
        )
        self._failures = Counter(
            "diptych_operator_failures",
            "How often a term has failed.",
            registry=self.registry,
        )
        self._held_back = gauge(
            "diptych_operator_rollouts_waiting",
            "Agents that wait for the rollout of others.",
        )
        self._is_leader = gauge(
            "diptych_operator_leads",
            "1 while this replica is the active one.",
        )

    def count_reconcile(self, result: str, seconds: float) -> None:
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def count_request(self, method: str, status: int) -> None:
        self._requests.labels(method, str(status)).inc()

    def count_failure(self) -> None:
        self._failures.inc()

    def set_held_back(self, count: int) -> None:
        self._held_back.set(count)

    def set_leader(self, *, is_leader: bool) -> None:
        self._is_leader.set(is_leader)

    def render(
        self, agents: Mapping[str, int], bad: Mapping[tuple[str, str], int], staleness: float
    ) -> bytes:
        """Return all metrics as text.

        `agents` counts the Agents by the status of Ready, `bad` by type and reason of what is
        wrong; `staleness` is in seconds.
        """
        self._conditions.clear()
        for condition_and_reason, count in bad.items():
            self._conditions.labels(*condition_and_reason).set(count)
        for status in ("True", "False", "Unknown"):
            self._agents.labels(status).set(agents.get(status, 0))
        self._staleness.set(staleness)
        return generate_latest(self.registry)
