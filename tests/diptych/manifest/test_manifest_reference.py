"""docs/reference/manifest.md: what the models say, every field of it."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]
REFERENCE = runpy.run_path(str(ROOT / "tools" / "reference" / "manifest.py"))
PAGE = REFERENCE["FILE"].read_text(encoding="utf-8")


def test_the_committed_page_is_what_the_tool_makes() -> None:
    assert REFERENCE["text"]() == PAGE
