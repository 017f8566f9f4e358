"""Parts of messages, as models get them, and of typed answers, as callers get them."""

import json
from typing import Any

import pytest
from a2a.types import Message, Part, Role, SendMessageRequest
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from support.model_server import model_server
from support.stack import stage

from diptych.a2a.message import read_a2a_request, read_steering
from diptych.a2a.parts import answer_parts, input_modes, read_part
from diptych.a2a.progress import Content

ALL = ("image", "audio", "file")
PNG = "data:image/png;base64,cG5n"


def part(**fields: Any) -> Part:
    return ParseDict(fields, Part())


def raw(media_type: str = "", filename: str = "", content: str = "cG5n") -> Part:
    return part(raw=content, mediaType=media_type, filename=filename)


def sent(*parts: Part) -> SendMessageRequest:
    message = Message(message_id="m", role=Role.ROLE_USER, parts=parts)
    return SendMessageRequest(message=message)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (part(text="hi"), "hi"),
        (part(data={"a": [1, 2.5, None]}), '{"a":[1,2.5,null]}'),
        (part(data="x", mediaType="application/json"), '"x"'),
        (raw("text/csv", content="YSxi"), "a,b"),
        (raw("application/ld+json; charset=utf-8", content="e30="), "{}"),
        (raw(filename="notes.txt", content="YSxi"), "a,b"),
        (raw("image/png"), {"type": "image_url", "image_url": {"url": PNG}}),
        (
            part(url="https://example.com/a.PNG"),
            {"type": "image_url", "image_url": {"url": "https://example.com/a.PNG"}},
        ),
        (
            raw("audio/mpeg"),
            {"type": "input_audio", "input_audio": {"data": "cG5n", "format": "mp3"}},
        ),
        (
            raw("application/pdf", "a.pdf"),
            {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cG5n"},
            },
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_part_is_read_in_the_form_of_chats(given: Part, read: Any) -> None:
    assert read_part(given, ALL) == read


@pytest.mark.parametrize(
    ("given", "inputs", "words"),
    [
        (raw("image/png"), ("audio", "file"), "(image/png) of kind raw"),
        (raw("audio/mpeg"), ("image", "file"), "image/webp, image/gif, application/pdf"),
        (raw("audio/flac"), ALL, "audio/wav, audio/mpeg"),
        (raw("application/pdf"), ("image", "audio"), "kind raw"),
        (raw(), ("image",), "a part of kind raw"),
        (part(url="https://example.com/a.pdf"), ALL, "kind url"),
        (part(url="file:///etc/a.png"), ALL, "kind url"),
        (part(url="data:text/html,a", mediaType="image/png"), ALL, "kind url"),
        (Part(), (), "no other type"),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_what_it_takes(
    given: Part, inputs: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ContentTypeNotSupportedError) as refused:
        read_part(given, inputs)
    assert words in refused.value.message


def test_a_text_file_is_in_utf_8() -> None:
    with pytest.raises(InvalidParamsError, match="not text in UTF-8"):
        read_part(raw("text/plain", content="//8="), ALL)


def test_a_card_names_the_types_that_the_model_takes() -> None:
    assert input_modes(()) == ["text/plain", "application/json"]
    assert input_modes(("file", "audio"))[2:] == ["application/pdf", "audio/wav", "audio/mpeg"]


def test_a_message_to_a_running_task_takes_no_files() -> None:
    request = sent(part(text="see"), raw("image/png"))
    with pytest.raises(ContentTypeNotSupportedError, match="a new task of its context"):
        read_steering(request.message, read_a2a_request(request, {}, ALL))


async def test_a_file_reaches_the_model_and_stands_in_the_history() -> None:
    async with (
        model_server("{}", "A cat.") as model,
        stage(model=model, inputs=("image",)) as helper,
    ):
        parts = [{"raw": "cG5n", "mediaType": "image/png", "filename": "cat.png"}]
        message = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
        response = await helper.http.post(
            "/a2a/rest/message:send", json={"message": message}, headers={"A2A-Version": "1.0"}
        )
        task = response.json()["task"]
        assert task["history"][0]["parts"] == parts
        assert task["artifacts"][0]["parts"] == [{"text": "A cat."}]
        image = {"type": "image_url", "image_url": {"url": PNG}}
        assert all(image in asked["messages"][-1]["content"] for asked in model.requests)


@pytest.mark.parametrize(
    ("value", "schema", "files"),
    [
        ({"a": 1}, {"type": "object"}, []),
        (
            "a,b",
            {"type": "string", "contentMediaType": "text/csv", "title": "t.csv"},
            [{"raw": "YSxi", "mediaType": "text/csv", "filename": "t.csv"}],
        ),
        (
            {"note": "x", "plot": "cG5n", "page": "https://example.com/a", "bad": "?"},
            {
                "properties": {
                    "plot": {"contentEncoding": "base64", "contentMediaType": "image/png"},
                    "page": {"format": "uri", "title": "a.html"},
                    "bad": {"contentEncoding": "base64", "contentMediaType": "image/png"},
                    "note": {"type": "string"},
                }
            },
            [
                {"raw": "cG5n", "mediaType": "image/png", "filename": "plot"},
                {"url": "https://example.com/a", "filename": "a.html"},
            ],
        ),
    ],
)
def test_a_typed_answer_is_its_files_its_value_and_its_text(
    value: Any, schema: Any, files: list[Any]
) -> None:
    text = json.dumps(value)
    answer = answer_parts(text, schema)
    parts = [{k: v for k, v in MessageToDict(p).items() if k != "metadata"} for p in answer]
    data = {"data": value, "mediaType": "application/json"}
    assert parts == [*files, data, {"text": text}]
    read = Content(answer)
    assert (read.text, read.value) == (text, value), "what our own agents read of it"
