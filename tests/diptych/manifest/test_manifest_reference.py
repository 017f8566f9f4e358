"""docs/reference/manifest.md: what the models say, every field of it."""

import runpy
from pathlib import Path

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
