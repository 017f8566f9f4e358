"""Prometheus metrics: of runs from the records of the event log, of models from each attempt.

No label holds text of a caller or a model; a model's name and endpoint are the manifest's, a hook's
name is its function's or its place and host.
"""

import time
from collections.abc import Callable, Iterator, Mapping
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


class Metrics:
    """An observer of all runs (`runs.run_log.Observer`), with a registry of its own.

    `in_process_model` names a model that reports no attempts, a script or a Python object: its
    replies are counted as they are recorded. `prices` are those of the model, if it has any.
    """

    def __init__(
        self, *, in_process_model: str | None = None, prices: Prices | None = None
    ) -> None:
        self._prices = prices
        self._in_process_model = in_process_model
        self._registry = CollectorRegistry()
        self._runs = self._counter("diptych_runs", "Runs that have ended.", "status")
        self._model_calls = self._counter(
            "diptych_model_calls",
            "Attempts at a model's endpoint, each retry one.",
            *("model", "endpoint", "outcome"),
        )
        self._model_errors = self._counter(
            "diptych_model_errors", "Attempts at a model's endpoint that failed.", "reason"
        )
        self._model_waits = self._counter(
            "diptych_model_waits",
            "Retries of a model, changes to a fallback, and long waits for a first byte.",
            *("model", "endpoint", "kind"),
        )
        self._tokens = self._counter("diptych_tokens", "Tokens, as the model counts them.", "kind")
        self._add_budget_metrics()
        self._add_hook_metrics()
        self._calls = self._counter(
            "diptych_calls", "Calls of tools and agents that have ended.", "kind", "outcome"
        )
        self._action_errors = self._counter(
            "diptych_action_errors", "Replies that could not be read.", "error_type"
        )
        self._refused = self._counter(
            "diptych_refused_requests", "Requests that access refused.", "reason"
        )
        self._add_times()
        self._live_runs = self._gauge("diptych_live_runs", "Runs that are queued or running.")
        self._dropped_runs = self._gauge(
            "diptych_dropped_runs", "Finished runs dropped to make room."
        )
        self._started_at: dict[str, float] = {}
        self._without_text: set[str] = set()

    def _add_budget_metrics(self) -> None:
        self._cost = self._counter("diptych_cost", "Money, by the prices of the manifest.")
        self._failed = self._counter("diptych_failed_runs", "Runs that have failed.", "code")
        self._budget_used = Gauge(
            "diptych_budget_used_ratio",
            "How much of the day's budget is used, as this process knows it; 1 is all of it.",
            ["limit"],
            registry=self._registry,
        )

    def _add_times(self) -> None:
        self._duration = Histogram(
            "diptych_run_seconds",
            "From the request to its end.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._first_text = Histogram(
            "diptych_first_text_seconds",
            "From the request to the first text of its answer.",
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def _add_hook_metrics(self) -> None:
        names = ("at", "hook")
        self._hooks = self._counter(
            "diptych_hook_calls", "Questions to hooks that have ended.", *names, "outcome"
        )
        self._hook_seconds = Histogram(
            "diptych_hook_seconds",
            "From a question to a hook to its end.",
            names,
            buckets=_HOOK_BUCKETS,
            registry=self._registry,
        )

    def observe(self, item: Record | Notice) -> None:
        if isinstance(item, Notice):
            if item.type == "model_wait":
                about = (str(item.fields[name]) for name in ("model", "endpoint", "kind"))
                self._model_waits.labels(*about).inc()
            return
        match item.event_type:
            case "text":
                self._observe_text(item.run_id)
            case "user_message" if item.seq == 1:
                self._observe_start(item.run_id)
            case "model_reply":
                self._observe_reply(item.metadata)
            case "action_error":
                self._action_errors.labels(item.metadata["error_type"]).inc()
            case event_type if event_type in _CALL_OUTCOMES:
                self._calls.labels(*_CALL_OUTCOMES[event_type]).inc()
            case event_type if event_type in TERMINAL:
                self._observe_end(item)
                self._observe_failure(item.metadata.get("code"))

    def observe_model(self, model: str, endpoint: str, outcome: str) -> None:
        """Count an attempt that ended as `ok`, as `cancelled` or by an error of that code."""
        is_error = outcome not in _GOOD_OUTCOMES
        self._model_calls.labels(model, endpoint, "error" if is_error else outcome).inc()
        if is_error:
            self._model_errors.labels(outcome).inc()

    def observe_hook(self, point: str, name: str, outcome: str, seconds: float) -> None:
        """Count a question to a hook (see `runs.hooks.HookObserver`)."""
        self._hooks.labels(point, name, outcome).inc()
        self._hook_seconds.labels(point, name).observe(seconds)

    def count_refused(self, reason: str) -> None:
        """Count a request that was refused; `reason` is one of a few words."""
        self._refused.labels(reason).inc()

    def add_lost_spans(self, read: Callable[[], int]) -> None:
        """Show how many spans this process has lost, of all its agents."""
        self._registry.register(_LostSpans(read))

    def render(
        self, live_runs: int, dropped_runs: int, of_day: tuple[Account, Used] | None = None
    ) -> tuple[bytes, str]:
        """Return the metrics as text, and the text's media type.

        `of_day` is the day's budget, and what this process knows to be used of it.
        """
        self._live_runs.set(live_runs)
        self._dropped_runs.set(dropped_runs)
        if of_day:
            account, used = of_day
            for name, limit in account.budget.limits:
                self._budget_used.labels(name).set(float(getattr(used, name) / limit))
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _observe_start(self, run_id: str) -> None:
        if len(self._started_at) >= _MAX_TIMED_RUNS:  # some have ended in another process
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
        self._tokens.labels("prompt").inc(usage["prompt_tokens"])
        self._tokens.labels("completion").inc(usage["completion_tokens"])
        if self._prices:
            self._cost.inc(float(self._prices.cost(read_usage(usage))))

    def _observe_failure(self, code: object) -> None:
        if code is not None:
            self._failed.labels(str(code)).inc()
        if self._in_process_model is not None and code in _MODEL_CODES:
            self.observe_model(self._in_process_model, "", str(code))

    def _observe_end(self, end: Record) -> None:
        self._runs.labels(end.event_type).inc()
        self._without_text.discard(end.run_id)
        if (started_at := self._started_at.pop(end.run_id, None)) is not None:
            self._duration.observe(time.monotonic() - started_at)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self._registry)


class _LostSpans(Collector):
    """A counter that is counted elsewhere."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        about = "Spans that the process could not send."
        yield CounterMetricFamily("diptych_lost_spans", about, self._read())
