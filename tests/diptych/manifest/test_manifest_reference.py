"""docs/reference/manifest.md: what the models say, every field of it."""

import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference" / "manifest.py"))
PAGE = REFERENCE["FILE"].read_text(encoding="utf-8")


def test_the_committed_page_is_what_the_tool_makes() -> None:
    assert REFERENCE["text"]() == PAGE


def test_every_field_of_a_manifest_with_all_of_them_is_on_the_page() -> None:
    manifest = yaml.safe_load((Path(__file__).parent / "full_manifest.yaml").read_text())
    spec = manifest["spec"]
    for part in ("model", "loop", "sessions", "container", "network"):
        assert [f for f in spec[part] if f"- `spec.{part}.{f}`: " not in PAGE] == []
    assert [field for field in spec if f"- `spec.{field}`: " not in PAGE] == []


@pytest.mark.parametrize(
    "entry",
    [
        "- `spec.loop.maxSteps`: integer, from 1 to 100, default `5`, since 0.1.",
        "- `spec.loop.maxRetries`: integer, from 0 to 100, default `3`, since 0.1.",
        "- `spec.loop.deadline`: duration, default `300s`, since 0.1.",
        "- `spec.model.name`: string, 1 to 256 characters, required, since 0.1.",
        '- `spec.tools[].allow`: list of strings, at most 64 entries, default `["*"]`, since 0.1.',
        "| `MCP_SERVER_<name>_URL` | `spec.tools[].url` |",
        "| `SHUTDOWN_GRACE_SECONDS` |  | `20` |",
    ],
)
def test_a_field_has_its_type_bounds_and_default(entry: str) -> None:
    assert entry in PAGE


def test_no_line_is_longer_than_a_reader_likes() -> None:
    assert [line for line in PAGE.splitlines() if len(line) > 120] == []
