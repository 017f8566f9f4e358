"""Where things lie: folders that must not be packages, and what a wheel holds."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", ["app", "operator", "crds", "tests", "tests/diptych_operator"])
def test_a_folder_that_would_shadow_something_is_no_package(folder: str):
    """`operator/__init__.py` would shadow the standard library's `operator`, at the root."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_a_wheel_holds_the_packages_and_nothing_else(tmp_path: Path):
    pytest.importorskip("hatchling", reason="hatchling is not installed: NO WHEEL WAS BUILT")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0].split("-")[0] for name in names}
    assert tops == {"diptych", "diptych_cel", "diptych_cron.py", "diptych_operator"}
    for needed in ("diptych/py.typed", "diptych/demo/agents.yaml", "diptych_operator/__main__.py"):
        assert needed in names
    names.remove("diptych/testing.py")  # for tests of users
    assert not [name for name in names if "__pycache__" in name or "test" in name.lower()]


def test_the_image_is_built_from_what_the_wheel_needs():
    """What `.dockerignore` lets through is what `COPY` names, and the build's metadata."""
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        name
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    assert let_in == copied
    project = PROJECT["project"]
    assert {project["readme"], *project["license-files"], "pyproject.toml", "uv.lock"} <= copied


@pytest.mark.parametrize("path", ["Dockerfile", "charts", "e2e", "tools"])
def test_no_path_of_somebodys_machine_is_in_a_file(path: str):
    place = ROOT / path
    files = [place] if place.is_file() else [f for f in place.rglob("*") if f.is_file()]
    for file in files:
        if file.suffix != ".pyc":
            text = file.read_text()
            assert "/root/" not in text, file
            assert "/home/" not in text, file
