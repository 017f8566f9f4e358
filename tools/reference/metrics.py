# ruff: noqa: INP001 - a script, no package
"""Writes `docs/reference/metrics.md` from the registries of agent, model proxy and operator."""

from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

import diptych.model_proxy.metrics as model_proxy
import diptych.telemetry.metrics as agent
import diptych_operator.controller.metrics as operator

FILE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
HEAD = """\
# Metrics

<!-- tools/reference/metrics.py writes this page. -->

In Prometheus' format. No label holds text of a caller or a model.

## Of an agent

At `/metrics`, or at `METRICS_PORT`, where a cluster has them (9090).
`diptych_lost_spans_total` is there only while traces are sent: spans the collector did not take.
"""
TABLE = "\n| metric | type | labels | meaning |\n|---|---|---|---|\n"


def text() -> str:
    """Return the page."""
    agents, operators = agent.Metrics()._registry, operator.Metrics().registry  # noqa: SLF001
    proxies = model_proxy.ProxyMetrics()._registry  # noqa: SLF001
    return (
        f"{HEAD}{_table(agents)}\n## Of a ModelAPI's proxy\n{_table(proxies)}"
        f"\n## Of the operator\n{_table(operators)}"
    )


def _table(registry: CollectorRegistry) -> str:
    metrics = [
        each
        for each in dict.fromkeys(registry._names_to_collectors.values())  # noqa: SLF001
        if isinstance(each, MetricWrapperBase)
    ]
    return TABLE + "".join(sorted(map(_row, metrics)))


def _row(metric: MetricWrapperBase) -> str:
    (about,) = metric.describe()
    name = about.name + ("_total" if about.type == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001
    return f"| `{name}` | {about.type} | {labels} | {about.documentation} |\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
