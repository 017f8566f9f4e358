"""What the chart gives Prometheus and Grafana: it names metrics that exist, and alerts fire.

Rules and expressions are checked by promtool (Debian's package `prometheus`, or $PROMTOOL). Tests
skip it where it is missing, and say so in capitals.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart import CHART, rendered

from diptych.telemetry.metrics import Metrics, render
from diptych_operator.controller.metrics import Metrics as OperatorMetrics

RULES = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
ON = {
    "ServiceMonitor": "metrics.serviceMonitor.enabled=true",
    "PodMonitor": "metrics.podMonitor.enabled=true",
    "PrometheusRule": "metrics.rules.enabled=true",
}


def existing() -> set[str]:
    """Name all series that pods and operator have."""
    texts = [
        render({"": Metrics().collect(0, 0)})[0].decode(),
        OperatorMetrics().render({}, {}, 0.0).decode(),
    ]
    found = re.findall(r"^# TYPE (\S+) (counter|gauge|histogram)$", "\n".join(texts), re.MULTILINE)
    return {
        name.removesuffix("_total") + suffix
        for name, kind in found
        if not name.endswith("_created")
        for suffix in SUFFIXES[kind]
    }


def named(text: str) -> set[str]:
    return set(re.findall(r"\bdiptych_[a-z_]+", text))


def test_every_metric_that_a_rule_or_panel_names_exists():
    texts = [*QUERIES, *(rule["expr"] for rule in ALERTS)]
    variables = [one["query"]["query"] for one in _variables() if one["type"] == "query"]
    used = {name for text in (*texts, *variables) for name in named(text)}
    assert len(used) > 12
    assert used - existing() == set()


def test_the_dashboard_shows_every_kind_of_metric_of_an_agent():
    shown = {name for query in QUERIES for name in named(query)}
    kinds = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in existing()}
    missing = kinds - {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    assert {name for name in missing if "operator" not in name} == {"diptych_dropped_runs"}


def test_the_dashboard_has_each_panel_once_and_names_variables_that_it_has():
    assert all(panel["targets"] for panel in PANELS)
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    names = {one["name"] for one in _variables()} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= names | {"__all"}


def _variables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
    return found


def test_alerts_say_what_is_wrong_and_how_bad_it_is():
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"].endswith(".")


# ---- promtool


def promtool(*arguments: str, folder: Path) -> None:
    program = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here: RULES AND DASHBOARD WERE NOT CHECKED")
    told = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_promtool_takes_the_rules_and_the_queries_of_the_dashboard(tmp_path):
    promtool("check", "rules", str(CHART / "files" / "rules.yaml"), folder=tmp_path)
    queries = [query.replace("$__rate_interval", "5m") for query in QUERIES]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(queries)]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    promtool("check", "rules", "r.yaml", folder=tmp_path)


def series(text: str, values: str) -> dict[str, str]:
    return {"series": text, "values": values}


POD = 'namespace="team", agent="helper"'
FIRING = {
    "DiptychOperatorAbsent": ([series("diptych_operator_leads", "0x120")], {}),
    "DiptychAgentsNotAvailable": (
        [series('diptych_operator_bad_conditions{condition="Available",reason="x"}', "1x120")],
        {},
    ),
    "DiptychAgentsNotReady": (
        [series('diptych_operator_agents{ready="False"}', "2x120")],
        {},
    ),
    "DiptychReconcilesFail": (
        [series('diptych_operator_reconciles_total{result="bug"}', "0+1x120")],
        {"result": "bug"},
    ),
    "DiptychWatchSilent": ([series("diptych_operator_watch_silence_seconds", "600x120")], {}),
    "DiptychRolloutsWait": ([series("diptych_operator_rollouts_waiting", "3x120")], {}),
    "DiptychModelFails": (
        [
            series(f'diptych_model_calls_total{{{POD}, outcome="error"}}', "0+6x120"),
            series(f'diptych_model_calls_total{{{POD}, outcome="ok"}}', "0+6x120"),
        ],
        {"namespace": "team", "agent": "helper"},
    ),
    "DiptychRunsFail": (
        [
            series(f'diptych_runs_total{{{POD}, status="failed"}}', "0+6x120"),
            series(f'diptych_runs_total{{{POD}, status="completed"}}', "0+6x120"),
        ],
        {"namespace": "team", "agent": "helper"},
    ),
    "DiptychCallsFail": (
        [
            series(f'diptych_calls_total{{{POD}, kind="tool", outcome="error"}}', "0+9x120"),
            series(f'diptych_calls_total{{{POD}, kind="tool", outcome="ok"}}', "0+1x120"),
        ],
        {"namespace": "team", "agent": "helper", "kind": "tool"},
    ),
}
"""Series under which each alert fires, and the labels that it then has."""


def test_every_alert_is_tried():
    assert FIRING.keys() == {rule["alert"] for rule in ALERTS}


def test_alerts_fire_when_they_should_and_not_without_a_reason(tmp_path):
    bare = [{**rule, "annotations": {}} for rule in ALERTS]
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": bare}]}))
    well = [series("diptych_operator_leads", "1x120")]
    cases = []
    for rule in ALERTS:
        given, labels = FIRING[rule["alert"]]
        fires = [{"exp_labels": {**rule["labels"], **labels}}]
        for input_series, expected in ((given, fires), (well, [])):
            at = {"eval_time": "100m", "alertname": rule["alert"], "exp_alerts": expected}
            case = {"interval": "1m", "input_series": input_series, "alert_rule_test": [at]}
            cases.append(case)
    (tmp_path / "t.yaml").write_text(yaml.safe_dump({"rule_files": ["r.yaml"], "tests": cases}))
    promtool("test", "rules", "t.yaml", folder=tmp_path)


# ---- the chart


@pytest.mark.parametrize("kind", ON)
def test_monitors_and_rules_are_off_unless_asked_for(kind):
    assert not [one for one in rendered() if one["kind"] == kind]
    assert [one for one in rendered(ON[kind]) if one["kind"] == kind]


def test_the_rules_and_the_dashboard_are_rendered_unchanged():
    objects = rendered(ON["PrometheusRule"], "metrics.dashboard.enabled=true")
    (rule,) = [one for one in objects if one["kind"] == "PrometheusRule"]
    assert rule["spec"] == RULES
    (board,) = [one for one in objects if "diptych.json" in one.get("data", {})]
    assert json.loads(board["data"]["diptych.json"]) == DASHBOARD
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_pod_monitor_finds_the_agents_pods_and_names_their_agent():
    def spec(*settings: str) -> dict[str, Any]:
        objects = rendered(ON["PodMonitor"], *settings)
        found: dict[str, Any] = next(o for o in objects if o["kind"] == "PodMonitor")["spec"]
        return found

    found = spec()
    assert found["namespaceSelector"] == {"any": True}
    assert spec("watchNamespaces={a,b}")["namespaceSelector"] == {"matchNames": ["a", "b"]}
    assert found["selector"]["matchLabels"]["app.kubernetes.io/name"] == "diptych-agent"
    (endpoint,) = found["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert endpoint["relabelings"][0]["targetLabel"] == "agent"
