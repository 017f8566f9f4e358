"""A user's program passes strict type checkers: mypy always, pyright where Node.js is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typed_program.py"
ROOT = Path(__file__).parents[3]
SECONDS = 400  # on a cold cache


@pytest.mark.timeout(2 * SECONDS)
def test_mypy_accepts_it() -> None:
    """With the settings and the cache of `make check`."""
    command = [sys.executable, "-m", "mypy", str(PROGRAM)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(2 * SECONDS)
def test_pyright_accepts_it(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("NOT CHECKED: pyright needs Node.js, and there is no program `node`")
    settings = {"typeCheckingMode": "strict", "include": [PROGRAM.name]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    shutil.copy(PROGRAM, tmp_path)
    options = ["--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [sys.executable, "-m", "pyright", *options],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=tmp_path,
    )
    found = json.loads(done.stdout)
    assert (found["summary"]["filesAnalyzed"], found["generalDiagnostics"]) == (1, []), done.stderr
