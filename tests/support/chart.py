"""The chart as helm renders it. Tests are skipped, in capitals, where there is no helm."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "diptych"
KUBERNETES = "1.34"
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
"""What a cluster's API has for the chart to make admission policies."""


@functools.cache
def rendered(*settings: str) -> tuple[dict[str, Any], ...]:
    """Give all objects of a release `diptych` in namespace `here`; a setting is `key=value`."""
    text = helm(*template_arguments(*settings))
    return tuple(found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found)


def template_arguments(*settings: str) -> list[str]:
    """Give helm's arguments for settings and options, such as `--skip-tests`."""
    flags = [part for s in settings for part in ([s] if s.startswith("--") else ["--set", s])]
    api = ["--kube-version", KUBERNETES, "--api-versions", POLICIES]
    return ["template", "diptych", str(CHART), "--namespace", "here", *api, *flags]


def helm(*arguments: str) -> str:
    told = run_helm(*arguments)
    assert told.returncode == 0, told.stderr
    return told.stdout


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([_program(), *arguments], capture_output=True, text=True, check=False)


@functools.cache
def _program() -> str:
    found = subprocess.run(
        [str(ROOT / "tools" / "helm"), "find"], capture_output=True, text=True, check=True
    )
    if program := found.stdout.strip():
        return program
    pytest.skip("helm is not here: THE CHART WAS NOT CHECKED")
