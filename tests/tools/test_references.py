"""The reference pages say what the code says."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATORS = ROOT / "tools" / "reference"


@pytest.mark.parametrize("name", ["cli", "events", "metrics", "python_api"])
def test_a_generated_page_is_fresh(name: str) -> None:
    generator = runpy.run_path(str(GENERATORS / f"{name}.py"))
    assert generator["FILE"].read_text() == generator["text"](), "run `make format`"
