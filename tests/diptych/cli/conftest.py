"""What the tests of the command line share: typing a command, in this process."""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from diptych.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Type = Callable[..., Outcome]


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
