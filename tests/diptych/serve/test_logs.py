"""How log records look on stderr."""

import logging
from collections.abc import Iterator

import orjson
import pytest

from diptych.serve.logs import set_up_logging


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO", "json")
    try:
        int("two\nlines")
    except ValueError:
        logging.getLogger("diptych.runtime.service").exception("run %s broke", "run-1")
    (line,) = capsys.readouterr().err.splitlines()
    shown = orjson.loads(line)
    assert shown["message"] == "run run-1 broke"
    assert (shown["level"], shown["logger"]) == ("error", "diptych.runtime.service")
    assert shown["exception"].startswith("Traceback")
    assert shown["time"].endswith("+00:00")


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("WARNING", "text")
    logging.getLogger("diptych.runtime.service").warning("it is %s", "late")
    logging.getLogger("diptych.runtime.service").info("not of interest")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING diptych.runtime.service: it is late")


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_libraries_talk_only_of_what_went_wrong(
    capsys: pytest.CaptureFixture[str], level: str
) -> None:
    set_up_logging(level, "text")
    for name in ("httpx", "httpx2", "mcp.client", "a2a.client", "uvicorn.access"):
        logging.getLogger(name).info("GET http://somewhere/?key=secret")
    assert not capsys.readouterr().err
