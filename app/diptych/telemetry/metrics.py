"""Prometheus metrics of runs, from the records of the event log, and of attempts at models.

No label contains text of a caller or a model: a model's name and endpoint come from the manifest,
a hook's name is its function's, or its position and host.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from diptych.core.budget import Prices
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import ModelCode
from diptych.core.json_values import read_usage
from diptych.core.messages import Used
from diptych.ports import Notice
from diptych.ports.budgets import Account

_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_HOOK_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
_MAX_TIMED_RUNS = 10_000
_GOOD_OUTCOMES = frozenset({"ok", "cancelled"})
_MODEL_CODES = frozenset(get_args(ModelCode))
_CALL_OUTCOMES = {
    "tool_result": ("tool", "ok"),
    "tool_error": ("tool", "error"),
    "delegation_response": ("agent", "ok"),
    "delegation_error": ("agent", "error"),
}


_COUNTERS: Mapping[str, Sequence[str]] = {  # help text, labels
    "runs": ("Runs that have ended.", "status"),
    "failed_runs": ("Runs that have failed.", "code"),
    "model_calls": (
        "Attempts at a model's endpoint, each retry one.",
        *("model", "endpoint", "outcome"),
    ),
    "model_errors": ("Attempts at a model's endpoint that failed.", "reason"),
    "model_waits": (
        "Retries of a model, changes to a fallback, and long waits for a first byte.",
        *("model", "endpoint", "kind"),
    ),
    "tokens": ("Tokens, as the model counts them.", "kind"),
    "cost": ("Money, by the prices of the manifest.",),
    "hook_calls": ("Questions to hooks that have ended.", "at", "hook", "outcome"),
    "calls": ("Calls of tools and agents that have ended.", "kind", "outcome"),
    "action_errors": ("Replies that could not be read.", "error_type"),
    "refused_requests": ("Requests that access refused.", "reason"),
}
_HISTOGRAMS: Mapping[str, tuple[str, Sequence[float], *tuple[str, ...]]] = {
    "run_seconds": ("From the request to its end.", _BUCKETS),
    "first_text_seconds": ("From the request to the first text of its answer.", _BUCKETS),
    "hook_seconds": ("From a question to a hook to its end.", _HOOK_BUCKETS, "at", "hook"),
}


class Metrics:
    """An observer of all runs (`runs.run_log.Observer`), with a registry of its own.

    `in_process_model` names a model that reports no attempts, a script or a Python object: its
    recorded replies are counted instead. `prices` are the model's, if any.
    """

    def __init__(
        self, *, in_process_model: str | None = None, prices: Prices | None = None
    ) -> None:
        self.prices = prices
        self._in_process_model = in_process_model
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"diptych_{name}", text, labels, registry=self._registry)
            for name, (text, *labels) in _COUNTERS.items()
        }
        self._budget_used = Gauge(
            "diptych_budget_used_ratio",
            "How much of the day's budget is used, as this process knows it; 1 is all of it.",
            ["limit"],
            registry=self._registry,
        )
        self._duration, self._first_text, self._hook_seconds = (
            Histogram(f"diptych_{name}", text, labels, registry=self._registry, buckets=buckets)
            for name, (text, buckets, *labels) in _HISTOGRAMS.items()
        )
        self._live_runs, self._dropped_runs = (
            Gauge(f"diptych_{name}", text, registry=self._registry)
            for name, text in (
                ("live_runs", "Runs that are queued or running."),
                ("dropped_runs", "Finished runs dropped to make room."),
            )
        )
        self._started_at: dict[str, float] = {}
        self._without_text: set[str] = set()

    def observe(self, item: Record | Notice) -> None:
        if isinstance(item, Notice):
            if item.type == "model_wait":
                about = (str(item.fields[name]) for name in ("model", "endpoint", "kind"))
                self._count("model_waits", *about)
            return
        match item.event_type:
            case "text":
                self._observe_text(item.run_id)
            case "user_message" if item.seq == 1:
                self._observe_start(item.run_id)
            case "model_reply":
                self._observe_reply(item.metadata)
            case "action_error":
                self._count("action_errors", str(item.metadata["error_type"]))
            case event_type if event_type in _CALL_OUTCOMES:
                self._count("calls", *_CALL_OUTCOMES[event_type])
            case event_type if event_type in TERMINAL:
                self._observe_end(item)
                self._observe_failure(item.metadata.get("code"))

    def observe_model(self, model: str, endpoint: str, outcome: str) -> None:
        """Count an attempt that ended as `ok`, `cancelled` or with an error code."""
        is_error = outcome not in _GOOD_OUTCOMES
        self._count("model_calls", model, endpoint, "error" if is_error else outcome)
        if is_error:
            self._count("model_errors", outcome)

    def observe_hook(self, point: str, name: str, outcome: str, seconds: float) -> None:
        """Count a hook call (see `runs.hooks.HookObserver`)."""
        self._count("hook_calls", point, name, outcome)
        self._hook_seconds.labels(point, name).observe(seconds)

    def count_refused(self, reason: str) -> None:
        """Count a refused request; `reason` comes from a small fixed set."""
        self._count("refused_requests", reason)

    def add_lost_spans(self, read: Callable[[], int]) -> None:
        """Add a counter of the spans that this process has lost, for all its agents."""
        self._registry.register(_LostSpans(read))

    def collect(
        self, live_runs: int, dropped_runs: int, of_day: tuple[Account, Used] | None = None
    ) -> Iterable[Metric]:
        """Return the metrics as they are now.

        `of_day` is the day's budget, and its use as known to this process.
        """
        self._live_runs.set(live_runs)
        self._dropped_runs.set(dropped_runs)
        if of_day:
            account, used = of_day
            for name, limit in account.budget.limits:
                self._budget_used.labels(name).set(float(getattr(used, name) / limit))
        return self._registry.collect()

    def _observe_start(self, run_id: str) -> None:
        if len(self._started_at) >= _MAX_TIMED_RUNS:  # some runs end in another process
            oldest = next(iter(self._started_at))
            del self._started_at[oldest]
            self._without_text.discard(oldest)
        self._started_at[run_id] = time.monotonic()
        self._without_text.add(run_id)

    def _observe_text(self, run_id: str) -> None:
        if run_id in self._without_text:
            self._without_text.discard(run_id)
            self._first_text.observe(time.monotonic() - self._started_at[run_id])

    def _observe_reply(self, metadata: Mapping[str, Any]) -> None:
        usage = metadata["usage"]
        if self._in_process_model is not None:
            self.observe_model(self._in_process_model, "", "ok")
        self._count("tokens", "prompt", by=usage["prompt_tokens"])
        self._count("tokens", "completion", by=usage["completion_tokens"])
        if self.prices:
            self._count("cost", by=float(self.prices.cost(read_usage(usage))))

    def _observe_failure(self, code: object) -> None:
        if code is not None:
            self._count("failed_runs", str(code))
        if self._in_process_model is not None and code in _MODEL_CODES:
            self.observe_model(self._in_process_model, "", str(code))

    def _observe_end(self, end: Record) -> None:
        self._count("runs", end.event_type)
        self._without_text.discard(end.run_id)
        if (started_at := self._started_at.pop(end.run_id, None)) is not None:
            self._duration.observe(time.monotonic() - started_at)

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)


def render(agents: Mapping[str, Iterable[Metric]]) -> tuple[bytes, str]:
    """Return the metrics of all agents as text, and its media type.

    A name that is not empty becomes the label `agent`.
    """
    families: dict[str, Metric] = {}
    for agent, metrics in agents.items():
        label = {"agent": agent} if agent else {}
        for metric in metrics:
            family = families.setdefault(
                metric.name, Metric(metric.name, metric.documentation, metric.type)
            )
            family.samples += [s._replace(labels={**label, **s.labels}) for s in metric.samples]
    return generate_latest(_Collected(families.values())), CONTENT_TYPE_PLAIN_0_0_4


class _Collected(CollectorRegistry):
    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class _LostSpans(Collector):
    """A counter whose value is kept elsewhere."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        about = "Spans that the process could not send."
        yield CounterMetricFamily("diptych_lost_spans", about, self._read())
