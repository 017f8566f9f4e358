"""A run as JSON Lines, for programs."""

import orjson
import pytest
from support.run_records import PROGRESS, Writer

from diptych.cli.notices import RECONNECTING
from diptych.cli.output.json_lines import JsonLines
from diptych.ports import Notice


def test_the_command_lines_own_notices_are_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    JsonLines().render(Notice(RECONNECTING, {"message": "it broke"}))
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "! it broke; picking the run up again\n")


def test_each_line_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonLines()
    for item in (PROGRESS, Writer()("text", "ü\n")):
        view.render(item)
    first, second = capsys.readouterr().out.splitlines()
    assert orjson.loads(first) == {"type": "progress", **PROGRESS.fields}
    assert orjson.loads(second)["event_type"] == "text"
    assert orjson.loads(second)["timestamp"] == "1970-01-01T00:01:40.010000Z"
