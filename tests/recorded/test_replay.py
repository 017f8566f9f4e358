"""Logs that released versions wrote are read by this one, to the same effect."""

import importlib.util
import json
from pathlib import Path

import pytest

from diptych.core.codec import EVENT_TYPES

HERE = Path(__file__).parent
RECORDINGS = sorted(HERE.glob("v*/*.jsonl"))


def _recorder():
    spec = importlib.util.spec_from_file_location("recorder", HERE / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDER = _recorder()
UNRELEASED = {
    *("action_format", "approval_requested", "approval_decided", "queue_cleared"),
    *("call_judged", "step_judged", "answer_judged"),
}
"""Types of events that no release has written yet."""
UNRELEASED_RUNS = {"native", "tools-refused", "asked", "queued", "hooked"}
"""Runs that no release has recorded yet."""


def _expected(file):
    return json.loads(file.with_suffix(".expected.json").read_text("utf-8"))


def _types(files):
    return {row["event_type"] for file in files for row in RECORDER.read(file)[0]}


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: f"{file.parent.name} {file.stem}")
def test_a_recorded_run_is_read_as_it_was_meant(file):
    found, expected = RECORDER.outcome(*RECORDER.read(file)), _expected(file)
    assert found["phases"][-1] == "done"
    assert found == expected


def test_every_recording_has_its_outcome_beside_it():
    assert RECORDER.RUNS.keys() - {file.stem for file in RECORDINGS} == UNRELEASED_RUNS
    assert [file for file in RECORDINGS if not file.with_suffix(".expected.json").exists()] == []


def test_every_event_type_was_recorded():
    """A version that writes a new one records it: see README.md."""
    assert _types(RECORDINGS) | UNRELEASED == {
        name for names in EVENT_TYPES.values() for name in names
    }


def test_runs_can_still_be_recorded(tmp_path):
    RECORDER.write(tmp_path / "v9.9")
    files = sorted((tmp_path / "v9.9").glob("*.jsonl"))
    assert {file.stem for file in files} == set(RECORDER.RUNS)
    assert _types(files) == _types(RECORDINGS) | UNRELEASED
    for file in files:
        assert RECORDER.outcome(*RECORDER.read(file)) == _expected(file)


def test_what_was_recorded_is_not_written_over(tmp_path):
    with pytest.raises(FileExistsError):
        RECORDER.write(tmp_path)
