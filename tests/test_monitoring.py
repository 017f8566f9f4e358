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

import jsonschema
import pytest
import yaml
from support.chart import CHART, rendered

from diptych.telemetry.metrics import Metrics
from diptych_operator.controller.metrics import Metrics as OperatorMetrics

RULES = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
ON = {
    "PodMonitor": "metrics.podMonitor.enabled=true",
    "PrometheusRule": "metrics.rules.enabled=true",
}
_STRING = {"type": "string", "minLength": 1}
_DATASOURCE = {"type": "object", "required": ["type", "uid"]}
_TARGET = {
    "type": "object",
    "required": ["refId", "expr", "datasource"],
    "properties": {"refId": {"pattern": "^[A-Z]$"}, "expr": _STRING, "datasource": _DATASOURCE},
}
_GRID = {
    "type": "object",
    "required": ["x", "y", "w", "h"],
    "additionalProperties": False,
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 23},
        "y": {"type": "integer", "minimum": 0},
        "w": {"type": "integer", "minimum": 1, "maximum": 24},
        "h": {"type": "integer", "minimum": 1},
    },
}
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time"],
    "properties": {
        "uid": {"pattern": "^[a-zA-Z0-9_-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 36},
        "panels": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "title", "gridPos", "datasource", "targets"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "type": {"enum": ["timeseries", "stat"]},
                    "title": _STRING,
                    "gridPos": _GRID,
                    "datasource": _DATASOURCE,
                    "targets": {"type": "array", "minItems": 1, "items": _TARGET},
                },
            },
        },
        "templating": {
            "type": "object",
            "properties": {
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "type", "query"],
                        "properties": {"type": {"enum": ["datasource", "query"]}},
                    },
                }
            },
        },
    },
}
"""The parts of Grafana's dashboard JSON that this dashboard uses."""


def existing() -> set[str]:
    """Name all series that pods and operator have."""
    texts = [
        Metrics().render(0, 0)[0].decode(),
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


def test_the_dashboard_has_the_form_of_one():
    jsonschema.validate(DASHBOARD, SCHEMA)
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
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


def test_promtool_takes_the_rules(tmp_path):
    promtool("check", "rules", str(CHART / "files" / "rules.yaml"), folder=tmp_path)


def test_promtool_takes_the_queries_of_the_dashboard(tmp_path):
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


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_fires_when_it_should_and_not_without_a_reason(rule, tmp_path):
    given, labels = FIRING[rule["alert"]]
    bare = {**rule, "annotations": {}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [bare]}]}))
    fires = [{"exp_labels": {**rule["labels"], **labels}}]
    well = [series("diptych_operator_leads", "1x120")]

    def case(input_series: list[dict[str, str]], expected: list[dict[str, Any]]) -> dict[str, Any]:
        at = {"eval_time": "100m", "alertname": rule["alert"], "exp_alerts": expected}
        return {"interval": "1m", "input_series": input_series, "alert_rule_test": [at]}

    tests = {"rule_files": ["r.yaml"], "tests": [case(given, fires), case(well, [])]}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(tests))
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
