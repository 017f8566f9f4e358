"""What `make conformance` makes of results: what it calls a surprise, and what its page says."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "conformance/run.py"


@pytest.fixture(scope="module")
def run() -> Any:
    spec = importlib.util.spec_from_file_location("conformance_run", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checks(folder: Path, **statuses: str) -> Path:
    found = [{"id": i, "status": s, "description": f"{i}?"} for i, s in statuses.items()]
    (folder / "checks.json").write_text(json.dumps(found))
    return folder


def test_warnings_failed_clients_and_missing_checks_are_failures(run: Any, tmp_path: Path):
    assert run.read_checks("s", tmp_path, "").failed == {"not-run"}
    folder = checks(tmp_path, a="SUCCESS", b="WARNING", c="SKIPPED", d="INFO")
    assert run.read_checks("s", folder, "") == run.Result("s", {"b"}, {"c?"}, 1)
    folder = checks(tmp_path, a="SUCCESS")
    assert run.read_checks("s", folder, "", "client-failed").failed == {"client-failed"}


def test_reasons_excuse_only_what_they_name_and_must_be_needed(run: Any):
    results = [run.Result("one", {"a", "b"}), run.Result("two", {"c"}), run.Result("three")]
    reasons = {"one:a": "no tool", "two": "no tool", "three": "old", "elsewhere": "old"}
    verdict = run.judge(results, reasons)
    assert verdict == run.Verdict({"no tool": ["one:a", "two"]}, {"one": ["b"]}, ["three"])
    assert len(verdict.surprises()) == 2
    assert run.counts(results, verdict) == ["1 of 3", "1", "0", "1"]


def test_a_part_is_written_beside_the_others_and_a_missing_suite_is_no_pass(
    run: Any, monkeypatch: Any, tmp_path: Path
):
    def missing() -> Any:
        raise run.Missing("no npm")

    results = [run.Result("x"), run.Result("y", skipped={"why"}, checks=0)]
    suites = {"a2a-tck": lambda: ("1.0", results), "mcp-client@2026-07-28": missing}
    monkeypatch.setattr(run, "RUNS", suites)
    monkeypatch.setattr(run, "PAGE", tmp_path / "conformance.md")
    assert run.main(["a2a"]) == 0
    assert run.main(["mcp"]) == 1
    page = run.PAGE.read_text()
    assert "| [A2A 1.0](#a2a-10) | 1.0 | 1 of 2 | 0 | 1 | 0 |\n" in page
    assert "| MCP client 2026-07-28 |  | **not run**: no npm |  |  |  |\n" in page
    assert page.endswith("- why: `y`\n")
    assert run.main([]) == 1
    assert run.PAGE.read_text() == page
