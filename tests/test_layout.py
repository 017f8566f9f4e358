"""Where things lie: folders that must not be packages, and what a wheel holds."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from support.order import LAST, LONG, TIMELESS, UNTRACED

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("folder", ["app", "operator", "crds", "tests", "tests/diptych_operator"])
def test_a_folder_that_would_shadow_something_is_no_package(folder: str):
    """`operator/__init__.py` would shadow the standard library's `operator`, at the root."""
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("module", ["collections", "operator", "diptych"])
def test_python_started_at_the_root_still_finds_its_own_modules(module: str):
    code = f"import {module}; print({module}.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert str(ROOT / "operator") not in told.stdout


def test_all_packages_are_in_the_distribution():
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["app/diptych", "app/diptych_cel", "operator/diptych_operator"]
    for package in packages:
        assert (ROOT / package / "__init__.py").exists()


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
    assert tops == {"diptych", "diptych_cel", "diptych_operator"}
    for needed in ("diptych/py.typed", "diptych/demo/agents.yaml", "diptych_operator/__main__.py"):
        assert needed in names
    chart = {name for name in names if name.startswith("diptych/chart/")}
    folder = ROOT / "charts" / "diptych"
    assert chart == {
        f"diptych/chart/{file.relative_to(folder).as_posix()}"
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    ours = [name for name in names if name not in chart]  # the chart has a test for `helm test`
    assert not [name for name in ours if "__pycache__" in name or "test" in name.lower()]


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


# What keeps the code readable: see CONTRIBUTING.md.

MODULES = sorted(path for folder in ("app", "operator") for path in (ROOT / folder).rglob("*.py"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def dotted(path: Path) -> tuple[str, ...]:
    """Give the parts of a module's name, from its package down."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return parts[:-1] if parts[-1] == "__init__" else parts


def leads_somewhere(name: str, home: tuple[str, ...], sources: dict[tuple[str, ...], str]) -> bool:
    """Whether a module, or what one defines, has this name as seen from the folder `home`."""
    for depth in range(len(home), -1, -1):
        found = (*home[:depth], *name.split("."))
        if found in sources:
            return True
        for end in range(1, len(found)):
            source, defined = sources.get(found[:end], ""), found[end:]
            lines = (rf"^ *(class |def |async def )?{part}\b" for part in defined)
            if all(re.search(line, source, re.MULTILINE) for line in lines):
                return True
    return False


def test_a_docstring_that_says_where_something_is_leads_there():
    sources = {dotted(path): path.read_text() for path in MODULES}
    dead = []
    for path in MODULES:
        pointers = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("Not here:")[2]
        home = dotted(path) if path.stem == "__init__" else dotted(path)[:-1]
        dead += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in re.findall(r"`([a-z_0-9]+(?:\.(?!lua)[A-Za-z_0-9]+)*)`", pointers)
            if not leads_somewhere(name, home, sources)
        ]
    assert not dead, "\n".join(dead)


def test_few_modules_lie_at_the_top_of_a_package():
    for package in ("app/diptych", "operator/diptych_operator"):
        assert len(list((ROOT / package).glob("*.py"))) <= 8, package


def test_no_module_and_no_function_is_long():
    long = []
    for path in MODULES:
        source = path.read_text()
        if (lines := source.count("\n")) > 300:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > 50:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_the_drawing_of_the_loop_names_each_of_its_modules():
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawing = page.partition(" loop/ ")[2].partition("```")[0]
    named = set(re.findall(r"\w+", drawing))
    modules = {path.stem for path in (ROOT / "app/diptych/loop").glob("[a-z]*.py")}
    assert modules <= named, modules - named


@pytest.mark.parametrize("room", ["controller", "desired", "process", "status"])
def test_the_list_of_a_room_of_the_operator_names_each_of_its_modules(room: str):
    folder = ROOT / "operator/diptych_operator" / room
    named = set(re.findall(r"\w+", (folder / "__init__.py").read_text()))
    modules = {path.stem for path in folder.glob("[a-z]*.py")}
    assert modules <= named, modules - named


def test_the_main_path_is_short():
    page = (ROOT / "docs" / "architecture.md").read_text()
    path = page.partition("## The main path")[2].partition("A reply of phase 1")[0]
    modules = set(re.findall(r"\*\*`([^`]+\.py)`\*\*", path))
    assert len(modules) <= 12, modules
    assert all((ROOT / "app/diptych" / module).exists() for module in modules)


def test_the_tests_that_the_readme_names_are_there():
    named = re.findall(r"`(tests/[^`]+)`", (ROOT / "README.md").read_text())
    assert named
    for pattern in named:
        assert list(ROOT.glob(pattern)), pattern


@pytest.mark.parametrize("start", sorted({*TIMELESS, *LONG, *LAST, *UNTRACED}))
def test_the_tests_that_their_order_names_are_there(start: str):
    file, _, test = start.partition("::")
    found = list(ROOT.glob(f"{file}*"))
    assert found
    assert not test or any(f"def {test}" in path.read_text() for path in found)


def test_lines_of_documents_end_at_120_characters():
    """Tables and addresses cannot be broken."""
    wide = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in DOCUMENTS
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if len(line) > 120 and "|" not in line and "http" not in line
    ]
    assert not wide, "\n".join(wide)
