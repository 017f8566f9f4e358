"""Every example runs as it is: from any folder, without a key, and without an activated venv."""

import logging
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.redis_server import redis_server

from diptych.cli import main
from diptych.manifest.loader import check_files

EXAMPLES = Path(__file__).parent.parent / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
DURABLE = EXAMPLES / "durable.yaml"
"""The one that needs something besides: a Redis."""

ANSWERS = {
    "calculator.yaml": "2 + 2, squared, is 16.",
    "durable.yaml": "Slow words are safe words: whoever asks again hears the rest.",
    "echo.yaml": "The echo returned: hello",
    "guarded.yaml": "2 to the power of 3 is 8.",
    "platform.yaml": "A year on Saturn takes 10738 days.",
    "planner.yaml": "A year on Saturn is about 15.6 times as long as one on Mars.",
    "python_function.py": "The text has 6 words.",
    "python_hooks.py": "Ada has 50 €; Eve is nobody we pay. Thank you!",
    "scheduled.yaml": "Nothing is new, which is good news.",
    "team.yaml": "Two wheels, no worries: 32 km on a litre of milk!",
}
STEPS = {
    "calculator.yaml": ["✗ Error executing tool calculate: only numbers", "✓ 16"],
    "echo.yaml": ["✓ hello"],
    "guarded.yaml": ["✗ calculate  denied: Powers grow too fast; multiply instead.", "✓ 8"],
    "planner.yaml": ['saturn = planet(name="Saturn")', "✓ 15.6433", "✓ looked up and divided"],
    "platform.yaml": ["✓ planet  {", "✓ days  10738.35", "✓ clerk"],
    "scheduled.yaml": [],
    "team.yaml": ["→ writer", "→ analyst", "✓ writer", "✓ analyst"],
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Another folder, a PATH without our venv, and no key."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.delenv("DEBUG_MOCK_RESPONSES", raising=False)
    yield tmp_path
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("file", [f for f in MANIFESTS if f != DURABLE], ids=lambda file: file.name)
@pytest.mark.usefixtures("elsewhere")
def test_a_manifest_runs_as_it_is(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["diptych", "run", str(file), "A question?"])
    with pytest.raises(SystemExit) as exit_:
        main()
    shown = capsys.readouterr()
    assert (exit_.value.code, shown.out) == (0, ANSWERS[file.name] + "\n"), shown.err
    for step in STEPS[file.name]:
        assert step in shown.err


@pytest.mark.usefixtures("elsewhere")
def test_the_durable_agent_runs_beside_a_redis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with redis_server() as redis:
        service = f"redis=localhost:{redis.port}"
        monkeypatch.setattr(
            sys, "argv", ["diptych", "run", str(DURABLE), "A question?", "--service", service]
        )
        with pytest.raises(SystemExit) as exit_:
            main()
    shown = capsys.readouterr()
    assert (exit_.value.code, shown.out) == (0, ANSWERS[DURABLE.name] + "\n"), shown.err


@pytest.mark.usefixtures("elsewhere")
def test_the_durable_agent_says_that_it_needs_a_redis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["diptych", "run", str(DURABLE), "A question?"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "give --service redis=redis://localhost:6379" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("program", ["python_function.py", "python_hooks.py"])
def test_a_program_runs_as_it_is(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    assert capsys.readouterr().out == ANSWERS[program] + "\n"


def test_an_example_runs_as_a_person_would_run_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "diptych", "run", str(EXAMPLES / "echo.yaml"), "A question?"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (0, ANSWERS["echo.yaml"] + "\n"), done.stderr


def test_a_cluster_would_take_every_manifest() -> None:
    for file in MANIFESTS:
        assert check_files([file]).problems == [], file


def test_every_example_is_tested_and_described() -> None:
    there = {file.name for file in EXAMPLES.iterdir() if file.suffix in {".yaml", ".py"}}
    described = (EXAMPLES / "README.md").read_text()
    elsewhere = {"hook_receiver.py"}  # tested by itself: it asks nothing
    assert there == {*ANSWERS, *elsewhere}
    assert all(f"[{name}]({name})" in described for name in there)
