"""What the tests of the command line share: typing a command, and a double of kubectl."""

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diptych.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Type = Callable[..., Outcome]
_DOUBLE = Path(__file__).parent / "servers" / "kubectl.py"


class Programs:
    """kubectl on PATH, as a double (`servers/kubectl.py`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rules: list[dict[str, Any]] = []
        self._add(("create token",), out="a-token\n", code=0, is_written=False)
        source = f"#!{sys.executable} -SE\n{_DOUBLE.read_text()}"
        (folder / "kubectl").write_text(source)
        (folder / "kubectl").chmod(0o755)
        self._write()

    def answer(self, *words: str, out: object = "", err: str = "", code: int | None = None) -> None:
        """Let calls with these parts be answered so; the newest rule comes first."""
        text = out if isinstance(out, str) else json.dumps(out)
        ends = code if code is not None else int(bool(err))
        self._add(words, out=text, err=err, code=ends)

    def forward_to(self, port: int, *, is_dead: bool = False) -> None:
        """Let port-forwards lead to a port of this machine; dead ones end at their first use."""
        self._add(("port-forward",), forwards_to=port, is_dead=is_dead, code=1)

    def calls(self, *words: str) -> list[list[str]]:
        """Give the calls in which these words stand."""
        return [call["words"] for call in self._called(words)]

    def pids(self, *words: str) -> list[int]:
        """Give the processes of these calls, whether or not they still run."""
        return [call["pid"] for call in self._called(words)]

    def _called(self, words: Sequence[str]) -> list[dict[str, Any]]:
        file = self.folder / "calls.jsonl"
        calls = map(json.loads, file.read_text().splitlines() if file.exists() else ())
        lines = ((call, f" {' '.join(call['words'])} ") for call in calls)
        return [call for call, line in lines if all(f" {part} " in line for part in words)]

    def _add(self, words: Sequence[str], *, is_written: bool = True, **what: object) -> None:
        blank = {"out": "", "err": "", "forwards_to": 0, "is_dead": False}
        self._rules.insert(0, {"words": list(words), **blank, **what})
        if is_written:
            self._write()

    def _write(self) -> None:
        new = self.folder / "answers.new"
        new.write_text(json.dumps(self._rules))
        new.replace(self.folder / "answers.json")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join((str(folder), os.environ["PATH"])))
    monkeypatch.chdir(tmp_path)
    return Programs(folder)


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    logging_as_before: None,
) -> Type:
    def type_(*words: str, stdin: str = "") -> Outcome:
        monkeypatch.setenv("PATH", os.environ["PATH"])  # the command line adds to it
        monkeypatch.setattr(sys, "argv", ["diptych", *words])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        shown = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, shown.out, shown.err)

    return type_
