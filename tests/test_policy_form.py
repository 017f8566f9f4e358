"""The form of a rule stands in three places, and they agree: models, chart and operator.

The chart's is made of the models by `crds/generate.py`. The operator does not import the pod, so
its own is held against theirs here.
"""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from diptych.manifest.policy import PolicyRuleSpec
from diptych_operator.process.settings_files import AgentsFile, SettingsError

ROOT = Path(__file__).parents[1]
GENERATOR = runpy.run_path(str(ROOT / "crds" / "generate.py"))
CHART = ROOT / "charts" / "diptych" / "values.schema.json"
VALUES = jsonschema.Draft7Validator(json.loads(CHART.read_text()))
RULE = {"match": {"tool": "bank__*"}, "do": "deny"}


def changed(**fields: Any) -> dict[str, Any]:
    return {**RULE, **fields}


def named(name: Any) -> dict[str, Any]:
    return changed(match={"tool": name})


TAKEN = [
    RULE,
    changed(match={"agent": "lawyer"}, when='args.task.contains("sue")', reason="A\nB"),
    changed(do="ask", mode="dryRun"),
    *(changed(expires=text) for text in ("1m30s", "500ms", "1h0m0s")),
    *(named(name) for name in ("é b", "x" * 256)),
    changed(when="true" + " " * 2044, reason="x" * 1024),
]
REFUSED = [
    {},
    {"match": {"tool": "a"}},
    changed(match={}),
    changed(match={"tool": "a", "agent": "b"}),
    changed(match={"server": "a"}),
    changed(other=1),
    changed(do="stop"),
    changed(mode="dry"),
    changed(when=""),
    changed(when="x" * 2049),
    changed(reason="x" * 1025),
    changed(reason=1),
    *(changed(expires=text) for text in ("", "1d", "30s1m", "-1s", "1.5h")),
    *(named(name) for name in ("", " a", "a\nb", "a\x00b", "x" * 257, 1)),
]
BEYOND_A_SCHEMA = [changed(expires=text) for text in ("0s", "24h1ms")]


def by_models(rule: dict[str, Any]) -> bool:
    try:
        PolicyRuleSpec.model_validate(rule)
    except ValidationError:
        return False
    return True


def by_the_chart(rule: dict[str, Any]) -> bool:
    return bool(VALUES.is_valid({"agents": {"policy": [rule]}}))


def by_the_operator(rule: dict[str, Any]) -> bool:
    try:
        return AgentsFile({"policy": [rule]}).policy == (rule,)
    except SettingsError:
        return False


PLACES = (by_models, by_the_chart, by_the_operator)


def test_the_charts_form_is_made_of_the_models() -> None:
    assert CHART.read_text() == GENERATOR["values_text"]()


def test_all_places_take_what_is_right_and_refuse_what_is_wrong() -> None:
    for takes in PLACES:
        assert [rule for rule in TAKEN if not takes(rule)] == []
        assert [rule for rule in REFUSED if takes(rule)] == []


@pytest.mark.parametrize("rule", BEYOND_A_SCHEMA, ids=str)
def test_the_bounds_of_a_duration_are_the_operators_affair(rule: dict[str, Any]) -> None:
    assert not by_models(rule)
    assert not by_the_operator(rule)


def test_what_becomes_of_repeated_calls_is_not_for_the_platform() -> None:
    rule = changed(repeat="deny")
    assert by_models(rule)
    assert not by_the_chart(rule)
    assert not by_the_operator(rule)
