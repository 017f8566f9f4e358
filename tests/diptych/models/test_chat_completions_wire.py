"""What is read from the chat completions API, and what is said when it cannot be."""

import json
from datetime import UTC, datetime

import aiohttp
import orjson
import pytest
from yarl import URL

from diptych.core.messages import Message, Usage
from diptych.models.decoding import decode_reply
from diptych.models.encoding import encode_request
from diptych.models.error_report import read_error_body
from diptych.models.failures import (
    MAX_QUOTATION_CHARS,
    AttemptFailure,
    connection_failure,
    parse_retry_after,
    quotation,
    status_failure,
)

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
URL_ASKED = URL("http://u:p@h/v1/chat/completions?key=1")
KEY = "sk-canary-0123456789"


def test_half_characters_in_a_conversation_are_replaced() -> None:
    body = encode_request({}, [Message("user", "a\ud83db"), Message("user", "\ud83d\ude00")])
    assert [m["content"] for m in json.loads(body)["messages"]] == ["a\ufffdb", "😀"]


@pytest.mark.parametrize("number", [2**63, -1, "7"])
def test_what_is_no_number_of_tokens_is_not_counted(number):
    usage = {"prompt_tokens": number, "completion_tokens": 2}
    choice = {"message": {"content": "Hi"}, "finish_reason": "stop"}
    body = orjson.dumps({"choices": [choice], "usage": usage})
    assert decode_reply(body).usage == Usage(0, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"choices": [{"message": {"content": 7}}]}',
        b"[" * 100_000,
    ],
)
def test_a_reply_of_another_form_is_garbage(body: bytes) -> None:
    with pytest.raises(AttemptFailure) as caught:
        decode_reply(body)
    assert (caught.value.code, caught.value.may_retry) == ("model_garbage", False)


def test_what_orjson_refuses_and_servers_send_is_read() -> None:
    body = b'{"choices": [{"logprob": NaN, "message": {"content": "a\\ud83d \xff"}}]}'
    assert decode_reply(body).text == "a\ufffd \ufffd"


@pytest.mark.parametrize(
    ("status", "code", "again"),
    [
        (302, "model_refused", False),
        (400, "model_refused", False),
        (401, "model_unauthorized", False),
        (403, "model_unauthorized", False),
        (408, "model_refused", True),
        (429, "model_overloaded", True),
        (501, "model_failed", False),
        (503, "model_overloaded", True),
        (529, "model_overloaded", True),
    ],
)
def test_every_status_has_its_code(status: int, code: str, again: bool) -> None:
    headers = {"retry-after": "2"}
    report = read_error_body(b'{"error": {"message": "own words"}}', status)
    failure = status_failure(report, headers, (), URL_ASKED)
    assert (failure.code, failure.may_retry) == (code, again)
    assert failure.retry_after == (2.0 if again else None)
    has_words = code in {"model_refused", "model_unauthorized", "model_overloaded"}
    assert ("own words" in failure.message) == (status >= 400 and has_words)
    if code in {"model_unauthorized", "model_overloaded"}:
        assert "The model endpoint http://h " in failure.message
        assert f"(HTTP {status}): own words." in failure.message


@pytest.mark.parametrize(
    "error",
    [
        pytest.param({"type": "insufficient_quota", "code": "insufficient_quota"}, id="OpenAI"),
        pytest.param({"code": "billing_not_active"}, id="OpenAI, no card"),
        pytest.param({"type": "exceeded_current_quota_error"}, id="Moonshot"),
    ],
)
def test_a_quota_that_is_used_up_is_said_and_not_asked_for_again(error: dict[str, str]) -> None:
    body = orjson.dumps({"error": {"message": "You exceeded your current quota.", **error}})
    failure = status_failure(read_error_body(body, 429), {"retry-after": "1"}, (), URL_ASKED)
    assert failure.message == (
        "The model endpoint http://h says that the quota is exhausted (HTTP 429): You exceeded "
        "your current quota. See the provider's plan and billing."
    )
    assert (failure.may_retry, failure.may_fall_back) == (False, True)


@pytest.mark.parametrize(
    ("path", "likely"),
    [
        ("/v2", "http://h:1/v1"),
        ("/vl", "http://h:1/v1"),
        ("/openai", "http://h:1/openai/v1"),
        ("/v1/completions", "http://h:1/v1"),
        ("/v1beta/openai", None),
    ],
)
@pytest.mark.parametrize("status", [404, 405])
def test_a_wrong_path_is_shown_with_the_likely_one(
    path: str, likely: str | None, status: int
) -> None:
    asked = f"http://h:1{path.rstrip('/')}/chat/completions"
    url = URL(asked.replace("//", "//u:p@")).with_query(key=KEY)
    message = status_failure(read_error_body(b"<html>", status), {}, (), url).message
    assert f"The URL was {asked}." in message
    assert (f"Did you mean {likely} as the model's endpoint?" in message) == (likely is not None)
    assert KEY not in message
    body = b'{"error": {"message": "The model `m` does not exist"}}'
    message = status_failure(read_error_body(body, status), {}, (), url).message
    assert "does not exist" in message
    assert "Did you mean" not in message


def test_a_connection_that_takes_too_long_is_not_tried_again() -> None:
    failure = connection_failure(aiohttp.ConnectionTimeoutError("http://h/?key=1"), "http://h")
    assert (failure.code, failure.may_retry) == ("model_timeout", False)
    assert "key" not in failure.message


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(f"key {KEY} is bad", "key … is bad", id="the key"),
        pytest.param("sk-proj-abc***xyz is bad", "… is bad", id="a masked key"),
        pytest.param("see https://u:p@h/x?key=1 now", "see https://h/x now", id="a URL"),
        pytest.param("a\n\tb\x00c\x1b[31m", "a b c [31m", id="control characters"),
        pytest.param("x" * 300, "x" * (MAX_QUOTATION_CHARS - 1) + "…", id="too long"),
        pytest.param("the task-based risk-free way", "the task-based risk-free way", id="prose"),
    ],
)
def test_the_words_of_an_endpoint_are_cleaned(text: str, left: str) -> None:
    assert quotation(text, [KEY]) == left


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        pytest.param("7", 7.0, id="seconds"),
        pytest.param("Sat, 21 Nov 2026 12:00:09 GMT", 9.0, id="a date"),
        pytest.param("Sat, 21 Nov 2026 12:00:09 -0000", 9.0, id="a date without a zone"),
        pytest.param("soon", None, id="nonsense"),
        pytest.param("9" * 400, None, id="a huge number"),
    ],
)
def test_retry_after_is_read(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds
