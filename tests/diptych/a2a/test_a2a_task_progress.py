"""What another agent sent, put together; and what its URLs mean."""

from dataclasses import replace
from typing import Any

import pytest
from a2a.types import Part, StreamResponse
from google.protobuf.json_format import ParseDict

from diptych.a2a.http_client import card_url, identity, may_lead_to
from diptych.a2a.progress import (
    MAX_ANSWER_CHARS,
    MAX_ARTIFACTS,
    Content,
    TaskProgress,
)
from diptych.a2a.transport import in_newer_form
from diptych.core.messages import JSON, CallOutput

CARD = "/.well-known/agent-card.json"


def output_after(*events: JSON) -> CallOutput:
    progress = TaskProgress()
    for event in events:
        progress.apply(ParseDict(event, StreamResponse()))
    return replace(progress.call_output("peer"), child=None)


def piece(artifact_id: str, part: JSON, *, append: bool = False) -> JSON:
    artifact: JSON = {"artifactId": artifact_id, "parts": [part]}
    return {"artifactUpdate": {"taskId": "t", "artifact": artifact, "append": append}}


DONE: JSON = {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}}


def test_several_artifacts_are_one_answer_with_a_blank_line_between() -> None:
    answer = output_after(
        piece("a", {"text": "one"}),
        piece("b", {"text": "two"}),
        piece("a", {"text": "!"}, append=True),
        DONE,
    )
    assert answer == CallOutput("one!\n\ntwo")


def test_data_is_the_value_of_the_answer_and_whole_numbers_stay_whole() -> None:
    answer = output_after(piece("a", {"data": {"n": 4326, "x": [1, 2.5, None]}}), DONE)
    assert answer == CallOutput(
        '{"n": 4326, "x": [1, 2.5, null]}', {"n": 4326, "x": [1, 2.5, None]}
    )


TEXTS: list[JSON] = [{"text": "```\na\n```"}, {"text": "Explain"}]


def task(*parts: JSON) -> JSON:
    status = {"state": "TASK_STATE_COMPLETED"}
    return {
        "task": {"id": "t", "status": status, "artifacts": [{"artifactId": "a", "parts": parts}]}
    }


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([{"message": {"messageId": "m", "parts": TEXTS}}], id="message"),
        pytest.param([task(*TEXTS)], id="task"),
        pytest.param([{"artifactUpdate": {"artifact": {"parts": TEXTS}}}, DONE], id="update"),
        pytest.param([piece("a", {"text": "x"}), task(*TEXTS)], id="task that replaces an update"),
    ],
)
def test_each_text_part_stands_on_a_line_of_its_own(events: list[JSON]) -> None:
    assert output_after(*events).text == "```\na\n```\nExplain"


def test_the_pieces_of_a_streamed_text_are_joined_as_they_are() -> None:
    said = [piece("a", {"text": text}, append=True) for text in ("Hel", "lo", " you")]
    kept = task({"text": "Hel"}, {"text": "lo"}, {"text": " you"})
    assert output_after(*said, DONE).text == "Hello you"
    assert output_after(*said, kept).text == "Hello you"


def test_files_are_named_and_not_shown() -> None:
    link: JSON = {"url": "https://x/y.pdf", "filename": "y.pdf"}
    assert output_after(piece("a", link), DONE) == CallOutput("[y.pdf: https://x/y.pdf]")
    assert output_after(piece("a", {"raw": "aGk="}), DONE) == CallOutput(
        "[a file of 2 bytes, not shown]"
    )


def message(text: str) -> JSON:
    return {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}


WORKING: JSON = {
    "statusUpdate": {
        "taskId": "t",
        "status": {"state": "TASK_STATE_WORKING", "message": message("Working on it.")},
    }
}


def test_what_a_status_before_the_end_said_is_not_the_answer_if_the_history_has_one() -> None:
    history = [message("Working on it."), message("Sunny.")]
    status = {"state": "TASK_STATE_COMPLETED"}
    task: JSON = {"task": {"id": "t", "status": status, "history": history}}
    assert output_after(WORKING, task).text == "Sunny."
    assert output_after(WORKING, DONE).text == "Working on it."  # there is nothing else


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("HTTP://A.B:80", id="capitals and the default port"),
        pytest.param(f"http://a.b{CARD}", id="a card"),
        pytest.param("http://a.b/a2a/", id="an endpoint with a slash"),
    ],
)
def test_all_spellings_of_an_agent_are_one_agent(url: str) -> None:
    assert identity(url) == identity("http://a.b")


@pytest.mark.parametrize("url", ["", "http://[::1", "http://a:99999"])
def test_a_url_that_is_none_harms_nobody(url: str) -> None:
    assert identity(url) != identity("http://a.b")
    assert not may_lead_to("http://a.b", "http://[::1", is_trusted=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param("http://a", f"http://a{CARD}", id="a base URL"),
        pytest.param("http://a/team/", f"http://a/team{CARD}", id="a base URL with a path"),
        pytest.param("http://a/cards/b.json", "http://a/cards/b.json", id="a card elsewhere"),
    ],
)
def test_a_card_is_found_by_its_own_url_or_the_agents(given: str, expected: str) -> None:
    assert card_url(given) == expected


@pytest.mark.parametrize(
    ("interface", "expected"),
    [
        pytest.param("http://a:9/rpc", True, id="the same host"),
        pytest.param("https://other/rpc", True, id="another host over https"),
        pytest.param("http://127.0.0.1/rpc", False, id="this machine"),
        pytest.param("ftp://a/rpc", False, id="another protocol"),
    ],
)
def test_a_strangers_card_leads_only_to_its_own_host_or_over_https(
    interface: str, expected: bool
) -> None:
    assert may_lead_to("http://a", interface, is_trusted=False) is expected


def test_no_number_of_artifacts_is_kept() -> None:
    progress = TaskProgress()
    for n in range(200):
        progress.apply(ParseDict(piece(str(n), {"text": "x" * 60_000}), StreamResponse()))
    progress.apply(ParseDict(DONE, StreamResponse()))
    text = progress.call_output("peer").text
    assert len(text) <= MAX_ANSWER_CHARS + 60_000 + 2 * MAX_ARTIFACTS
    assert text.count("\n\n") < MAX_ARTIFACTS


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


def test_files_and_roles_are_written_anew_and_what_is_the_agents_own_is_not() -> None:
    file = {"kind": "file", "file": {"uri": "https://x/a", "name": "a", "mimeType": "text/csv"}}
    own = {"kind": "data", "data": {"state": "open", "role": "user", "file": {"uri": 1}}}
    message = {"kind": "message", "role": "user", "messageId": "m", "parts": [file, own]}
    newer = in_newer_form(message)["message"]
    assert newer["role"] == "ROLE_USER"
    assert newer["parts"][0] == {"url": "https://x/a", "filename": "a", "mediaType": "text/csv"}
    assert newer["parts"][1]["data"] == own["data"]


def test_all_values_of_an_answer_are_shown_below_its_text() -> None:
    content = Content()
    content.add([Part(text="Two rows."), _data({"a": 1}), _data({"b": 2})])
    assert content.text == 'Two rows.\n{"a": 1}\n{"b": 2}'
    assert content.value == {"b": 2}


def test_a_value_that_its_text_writes_out_is_shown_once() -> None:
    content = Content()
    content.add([Part(text='{"n": 9007199254740993}'), _data({"n": 9007199254740992})])
    assert content.text == '{"n": 9007199254740993}'


def _data(value: dict[str, Any]) -> Part:
    return ParseDict({"data": value}, Part())
