"""Prometheus metrics of a ModelAPI's proxy. No label contains a caller's text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from diptych.core.messages import Usage, Used
from diptych.ports.budgets import Account

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ProxyMetrics:
    """The metrics, with a registry of their own. Subjects are those that the ModelAPI allows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "diptych_model_proxy_requests",
            "Requests that have ended.",
            ["subject", "outcome"],
            registry=self._registry,
        )
        self._tokens = Counter(
            "diptych_model_proxy_tokens",
            "Tokens, as the endpoint counts them.",
            ["subject", "kind"],
            registry=self._registry,
        )
        self._refused = Counter(
            "diptych_model_proxy_refused_requests",
            "Requests that access refused.",
            ["reason"],
            registry=self._registry,
        )
        self._first_byte = Histogram(
            "diptych_model_proxy_first_byte_seconds",
            "From a whole request to the first byte of its reply.",
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._live = Gauge(
            "diptych_model_proxy_live_requests",
            "Requests that are passed on now.",
            registry=self._registry,
        )
        self._budget_used = Gauge(
            "diptych_model_proxy_budget_used_ratio",
            "How much of the day's budget is used, as this process knows it; 1 is all of it.",
            ["limit"],
            registry=self._registry,
        )

    def count(self, subject: str, outcome: str, usage: Usage | None) -> None:
        """Count a request that has ended as `ok`, `failed`, `refused` or `cancelled`."""
        self._requests.labels(subject, outcome).inc()
        if usage:
            self._tokens.labels(subject, "prompt").inc(usage.prompt_tokens)
            self._tokens.labels(subject, "completion").inc(usage.completion_tokens)

    def count_refused(self, reason: str) -> None:
        """Count a request of no allowed caller; `reason` comes from a small fixed set."""
        self._refused.labels(reason).inc()

    def observe_first_byte(self, seconds: float) -> None:
        self._first_byte.observe(seconds)

    def render(self, live: int, of_day: tuple[Account, Used] | None) -> tuple[bytes, str]:
        """Return the metrics as text, and its media type."""
        self._live.set(live)
        if of_day:
            account, used = of_day
            for name, limit in account.budget.limits:
                self._budget_used.labels(name).set(float(getattr(used, name) / limit))
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
