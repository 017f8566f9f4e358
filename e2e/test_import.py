"""Six samples of KAOS and kagent: imported, applied, asked."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.commands import output
from harness.space import Space

BIN = Path(sys.executable).parent
SAMPLES = Path(__file__).parents[1] / "tests" / "diptych" / "importer" / "samples"
SCRIPT = {"name": "DEBUG_MOCK_RESPONSES", "value": '["{}", "Imported."]'}
"""For Agents whose sample has none: no model is asked."""


nightly = partial(pytest.param, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("sample", "agent", "answer"),
    [
        ("kaos/team", "lead", "The writer wrote: rain."),
        ("kagent/house", "k8s-helper", "All pods run."),
        nightly("kaos/echo", "gardener", "The tomatoes have 21 degrees."),
        nightly("kaos/autonomous", "watch", "All pods are ready."),
        nightly("kagent/prompts", "referred", "Imported."),
        nightly("kaos/list", "clerk", "Imported."),
    ],
)
def test_an_imported_sample_answers(space: Space, sample: str, agent: str, answer: str):
    made = [within(one, space.name) for one in imported(SAMPLES / f"{sample}.yaml")]
    secrets = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": keys}
        for name, keys in secrets_of(made).items()
    ]
    others = [one for one in made if one["kind"] not in ("Agent", "Namespace")]
    space.kubectl.apply(*secrets, *others)
    space.serve(*(one for one in made if one["kind"] == "Agent"))
    command = (str(BIN / "diptych"), "run", agent, "Well?", "--namespace", space.name)
    assert output(*command, env=space.kubectl.env, timeout=120).strip() == answer


def imported(sample: Path) -> list[dict[str, Any]]:
    command = [BIN / "diptych", "import", sample]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [one for one in yaml.safe_load_all(made.stdout) if one]


def within(made: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Move an object into the test's namespace, and give an Agent a script."""
    made["metadata"]["namespace"] = namespace
    if made["kind"] == "Agent":
        env = made["spec"].setdefault("container", {}).setdefault("env", [])
        if all(variable["name"] != SCRIPT["name"] for variable in env):
            env.append(SCRIPT)
    return made


def secrets_of(value: Any) -> dict[str, dict[str, str]]:
    """Find the Secrets that objects name, with a value for each key."""
    found: dict[str, dict[str, str]] = {}
    if isinstance(value, dict) and isinstance(value.get("secretKeyRef"), dict):
        reference = value["secretKeyRef"]
        return {reference["name"]: {reference["key"]: "a-key"}}
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            for name, keys in secrets_of(inner).items():
                found.setdefault(name, {}).update(keys)
    return found
