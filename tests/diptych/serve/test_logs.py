"""How log records look on stderr."""

import logging
from collections.abc import Iterator

import orjson
import pytest

from diptych.net.redaction import MARK, SECRETS
from diptych.serve.logs import (
    MAX_EXCEPTION_CHARS,
    MAX_MESSAGE_CHARS,
    set_up_logging,
)


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
        logging.getLogger("diptych.runs.service").exception("run %s broke", "run-1")
    (line,) = capsys.readouterr().err.splitlines()
    shown = orjson.loads(line)
    assert shown["message"] == "run run-1 broke"
    assert (shown["level"], shown["logger"]) == ("error", "diptych.runs.service")
    assert shown["exception"].startswith("Traceback")
    assert shown["time"].endswith("+00:00")


@pytest.mark.parametrize("level", ["INFO"])
def test_libraries_talk_only_of_what_went_wrong(
    capsys: pytest.CaptureFixture[str], level: str
) -> None:
    set_up_logging(level, "text")
    for name in ("httpx", "httpx2", "mcp.client", "a2a.client", "uvicorn.access"):
        logging.getLogger(name).info("GET http://somewhere/?key=secret")
    for name in ("opentelemetry.exporter", "urllib3.connection"):  # of what a collector answers
        logging.getLogger(name).error("it answers: sesame")
    assert not capsys.readouterr().err


OURS = "diptych.runs.service"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_logged(capsys: pytest.CaptureFixture[str], form: str) -> None:
    SECRETS.remember("canary-9f8e7d6c5b4a")
    set_up_logging("INFO", form)  # type: ignore[arg-type]
    try:
        int("canary-9f8e7d6c5b4a")
    except ValueError:
        logging.getLogger(OURS).exception(
            "key %s, %s", "canary-9f8e7d6c5b4a", "canary-9f8e7d6c5b4a"
        )
    shown = capsys.readouterr().err
    assert shown.count(MARK) == 4  # one of them in the line of the source
    assert "9f8e7d6c" not in shown


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("size", [20, 900, 9_000])
def test_no_token_is_logged_that_somebody_put_into_a_path(
    capsys: pytest.CaptureFixture[str], form: str, size: int
) -> None:
    set_up_logging("INFO", form)  # type: ignore[arg-type]
    token = ".".join(("eyJhbGciOiJub25lIn0", "eyJzdWIiOiJhZGEi" + "Q" * size, "s1gnature"))
    try:
        int(f"/v1/runs?token={token}")
    except ValueError:
        logging.getLogger(OURS).exception("GET /v1/runs/%s/x", token)
    logging.getLogger("diptych.audit").warning("%s", f'{{"path": "/a{token}/v1.2.3/{token}"}}')
    shown = capsys.readouterr().err
    assert shown.count(MARK) == 4
    assert "eyJ" not in shown
    assert "s1gnature" not in shown
    assert "/v1.2.3/" in shown


def test_nobody_writes_a_line_of_the_log_or_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging("INFO", "text")
    try:
        int("\x1b[2J")
    except ValueError as error:
        error.add_note("\x1b]0;title\x07")
        logging.getLogger(OURS).exception("run %s", "a\n2026-01-01 ERROR forged\x1b[31m\u202e")
    first, *stack = capsys.readouterr().err.splitlines()
    assert first.endswith(r"run a\n2026-01-01 ERROR forged\x1b[31m\u202e")
    assert stack[0].startswith("Traceback")
    assert all(line.isprintable() for line in stack)


def test_ids_messages_and_stacks_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("INFO", "text")
    logging.getLogger(OURS).info("run %s of %s", "x" * 1_000_000, "y" * 1_000_000)
    assert len(capsys.readouterr().err) < 2_200
    logging.getLogger(OURS).info("z" * 1_000_000)
    assert len(capsys.readouterr().err) < MAX_MESSAGE_CHARS + 100
    try:
        int("1" * 1_000_000 + "x")
    except ValueError:
        logging.getLogger(OURS).exception("no number")
    assert len(capsys.readouterr().err) < MAX_EXCEPTION_CHARS + 200


def test_a_line_that_cannot_be_written_takes_no_other_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError("no text")

    set_up_logging("INFO", "text")
    logging.getLogger(OURS).info("before")
    logging.getLogger(OURS).info(Broken())
    logging.getLogger(OURS).warning("after")
    said = capsys.readouterr().err
    assert "before" in said
    assert "after" in said
