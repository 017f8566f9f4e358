"""Replies of agents that name A2A 1.0 and write them in the form of 0.3."""

from typing import Any

import pytest
from a2a.types import Message, Part, StreamResponse, Task, TaskState
from google.protobuf.json_format import ParseDict

from diptych.a2a.progress import Content, last_words
from diptych.a2a.transport import in_newer_form


@pytest.mark.parametrize(
    ("result", "field"),
    [
        ({"kind": "task", "id": "t", "status": {"state": "working"}}, "task"),
        ({"kind": "message", "messageId": "m", "role": "agent", "parts": []}, "message"),
        (
            {"kind": "status-update", "taskId": "t", "status": {"state": "completed"}},
            "statusUpdate",
        ),
        ({"kind": "artifact-update", "taskId": "t", "artifact": {}}, "artifactUpdate"),
    ],
)
def test_a_result_is_put_where_the_newer_version_has_it(result: dict[str, Any], field: str) -> None:
    assert set(result) - {"kind"} <= set(in_newer_form(result)[field])


def test_a_task_is_read_as_an_event_and_as_it_is() -> None:
    result = in_newer_form({"kind": "task", "id": "t", "status": {"state": "input-required"}})
    event = ParseDict(result, StreamResponse(), ignore_unknown_fields=True)
    task = ParseDict(result, Task(), ignore_unknown_fields=True)
    assert event.task == task
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED


def test_files_and_roles_are_written_anew_and_what_is_the_agents_own_is_not() -> None:
    file = {"kind": "file", "file": {"uri": "https://x/a", "name": "a", "mimeType": "text/csv"}}
    own = {"kind": "data", "data": {"state": "open", "role": "user", "file": {"uri": 1}}}
    message = {"kind": "message", "role": "user", "messageId": "m", "parts": [file, own]}
    newer = in_newer_form(message)["message"]
    assert newer["role"] == "ROLE_USER"
    assert newer["parts"][0] == {"url": "https://x/a", "filename": "a", "mediaType": "text/csv"}
    assert newer["parts"][1]["data"] == own["data"]


@pytest.mark.parametrize("result", [None, 7, [], "x", {"kind": 1}, {"task": 7}, {"kind": "task"}])
def test_what_is_not_understood_is_left_to_the_sdk(result: Any) -> None:
    in_newer_form(result)


def test_all_values_of_an_answer_are_shown_below_its_text() -> None:
    content = Content()
    content.add([Part(text="Two rows."), _data({"a": 1}), _data({"b": 2})])
    assert content.text == 'Two rows.\n{"a": 1}\n{"b": 2}'
    assert content.value == {"b": 2}


def test_a_value_that_its_text_writes_out_is_shown_once() -> None:
    content = Content()
    content.add([Part(text='{"n": 9007199254740993}'), _data({"n": 9007199254740992})])
    assert content.text == '{"n": 9007199254740993}'


def test_what_an_agent_said_before_it_was_answered_is_not_its_answer() -> None:
    def said(role: str, text: str) -> Message:
        return ParseDict({"role": role, "parts": [{"text": text}]}, Message())

    history = [said("ROLE_AGENT", "Which city?"), said("ROLE_USER", "Rome")]
    assert last_words(history) == ""
    assert last_words([*history, said("ROLE_AGENT", "Sunny.")]) == "Sunny."


def _data(value: dict[str, Any]) -> Part:
    return ParseDict({"data": value}, Part())
