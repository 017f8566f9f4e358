"""Recorded runs are read to the same effect, and their records written as they were."""

import importlib.util
import json
from pathlib import Path

import pytest

from diptych.core.codec import EVENT_TYPES, encode

HERE = Path(__file__).parent
RECORDINGS = sorted(HERE.glob("format-*/*.jsonl"))


def _recorder():
    spec = importlib.util.spec_from_file_location("recorder", HERE / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORDER = _recorder()


def _types(files):
    return {row["event_type"] for file in files for row in RECORDER.read(file)[0]}


@pytest.mark.parametrize("file", RECORDINGS, ids=lambda file: file.stem)
def test_a_recorded_run_is_read_as_it_was_meant(file):
    rows, shared = RECORDER.read(file)
    assert RECORDER.outcome(rows, shared["kept"], shared["history"]) == shared["outcome"]
    written = [encode(event) for event in RECORDER.decoded(rows, shared["kept"])]
    assert json.loads(json.dumps(written)) == [
        [row["event_type"], row["content"], row["metadata"]] for row in rows
    ]


def test_every_event_type_was_recorded():
    of_others = {"aborted", "owner_changed"} - _types(RECORDINGS)
    assert _types(RECORDINGS) | of_others == {n for names in EVENT_TYPES.values() for n in names}


def test_runs_are_still_recorded_so(tmp_path):
    RECORDER.write(tmp_path / "now")
    files = sorted((tmp_path / "now").glob("*.jsonl"))
    assert [file.name for file in files] == [file.name for file in RECORDINGS]
    for file, recorded in zip(files, RECORDINGS, strict=True):
        assert RECORDER.read(file)[1]["outcome"] == RECORDER.read(recorded)[1]["outcome"]
