"""Answers of a given form: what a chat and a run ask for, and how the answer is written."""

import json
from typing import Any

import pytest
from support.doubles import FunctionTools
from support.face import HI, Face, face, openai_error
from support.stack import call, frames

from diptych.core.events import RunRequested
from diptych.manifest.settings import ChatConfig

CHAT = "/v1/chat/completions"
RUNS = "/v1/runs"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"$ref": "#/$defs/name"}},
    "required": ["name"],
    "$defs": {"name": {"type": "string"}},
}
CITY = '{"name": "Paris"}'
TOOL = {"type": "function", "function": {"name": "City", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "Other"}}
BIG = {
    "type": "function",
    "function": {"name": "B1", "parameters": {"description": "x" * 40_000}},
}
BY_NAME = {"type": "function", "function": {"name": "City"}}


def schema_format(schema: Any = SCHEMA, **about: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, **about}}


async def recorded(helper: Face) -> RunRequested:
    entry, *_ = await helper.house.runs.entries()
    first = (await helper.house.events(entry.run_id))[0]
    assert isinstance(first, RunRequested)
    return first


async def test_a_chat_asks_for_the_form_of_its_answer() -> None:
    async with face("{}", CITY) as helper:
        for fields, schema in (
            ({"response_format": {"type": "json_object"}}, {}),
            ({"response_format": schema_format(strict=True)}, SCHEMA),
            (
                {"response_format": schema_format(description="A city.")},
                {**SCHEMA, "description": "A city."},
            ),
            ({"tools": [TOOL], "tool_choice": BY_NAME}, SCHEMA),
            ({"tools": [OTHER, TOOL], "tool_choice": BY_NAME}, SCHEMA),
        ):
            response = await helper.http.post(CHAT, json={**HI, **fields})
            assert response.status_code == 200, response.text
            assert (await recorded(helper)).output_schema == schema
            assert "X-Diptych-Warning" not in response.headers


BAD_SCHEMAS = [
    ({"properties": {"a": {"minimum": "x"}}}, ".properties.a.minimum"),
    ({"description": "x" * 2**16}, ""),
    ({"$ref": "#/$defs/none"}, ""),
]


async def test_a_schema_that_is_none_is_refused_by_its_place() -> None:
    for schema, place in BAD_SCHEMAS:
        tool = {"type": "function", "function": {"name": "City", "parameters": schema}}
        ways: list[tuple[str, Any, str]] = [
            (
                CHAT,
                {"response_format": schema_format(schema)},
                "response_format.json_schema.schema",
            ),
            (CHAT, {"tools": [tool], "tool_choice": BY_NAME}, "tools[0].function.parameters"),
            (RUNS, {"output_schema": schema}, "output_schema"),
        ]
        async with face() as helper:
            for path, fields, param in ways:
                error = openai_error(await helper.http.post(path, json={**HI, **fields}), 400)
                assert (error["param"], error["code"]) == (param + place, "invalid_json_schema")
        assert await helper.house.runs.entries() == []


async def test_a_form_that_cannot_be_had_is_refused() -> None:
    async with face() as helper:
        for fields, param in (
            ({"response_format": {"type": "xml"}}, "response_format.type"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
            ({"tools": [TOOL, OTHER]}, "tools"),
            (
                {
                    "tools": [
                        BIG,
                        OTHER,
                        TOOL,
                        {**BIG, "function": {**BIG["function"], "name": "B2"}},
                    ],
                    "tool_choice": "required",
                },
                "tools",
            ),
            ({"tools": [OTHER], "tool_choice": BY_NAME}, "tool_choice"),
            (
                {"tools": [{**TOOL, "function": {"name": ""}}], "tool_choice": "required"},
                "tools[0].function.name",
            ),
        ):
            response = await helper.http.post(CHAT, json={**HI, **fields})
            assert openai_error(response, 400)["param"] == param
        assert await helper.house.runs.entries() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_asks_for_fewer_steps_than_its_agent_has(stream: bool) -> None:
    async def echo(text: str = "") -> str:
        return text

    async with face(call("echo"), call("echo"), tools=FunctionTools({"echo": echo})) as helper:
        body = {**HI, "max_steps": 1, "stream": stream}
        response = await helper.http.post(CHAT, json=body)
        assert "Reached maximum reasoning steps (1)" in response.text
        assert '"finish_reason":"length"' in response.text
        assert "X-Diptych-Warning" not in response.headers
        assert (await recorded(helper)).max_steps == 1


@pytest.mark.parametrize(
    ("replies", "fields", "code"),
    [
        (["{}", "x", "x", "x"], {"response_format": schema_format()}, "invalid_output"),
        (["{}", "{}", "{}"], {}, "answer_not_given"),
    ],
)
async def test_what_was_asked_for_again_already_is_not_to_be_asked_again_by_clients(
    replies: list[str], fields: Any, code: str
) -> None:
    async with face(*replies) as helper:
        response = await helper.http.post(CHAT, json={**HI, **fields})
        assert openai_error(response, 502)["code"] == code
        assert response.headers["x-should-retry"] == "false"


# The caller's tool


FORCED = {**HI, "tools": [TOOL], "tool_choice": BY_NAME}


async def test_the_call_is_streamed_as_openai_s_clients_put_it_together() -> None:
    async with face("{}", {"content": CITY, "chunk_ms": 30}) as helper:
        told = frames((await helper.http.post(CHAT, json={**FORCED, "stream": True})).text)
        deltas = [choice["delta"] for f in told[:-1] for choice in f.json["choices"]]
        assert deltas[0] == {"role": "assistant", "content": None}
        pieces = [each for delta in deltas for each in delta.get("tool_calls", ())]
        assert pieces[0]["function"] == {"name": "City", "arguments": ""}
        assert all(piece["index"] == 0 for piece in pieces)
        assert len(pieces) >= 2
        assert not any(piece.keys() & {"id", "type"} for piece in pieces[1:])
        assert "".join(piece["function"]["arguments"] for piece in pieces) == CITY
        assert told[-2].json["choices"][0]["finish_reason"] == "tool_calls"
        assert not any("content" in delta for delta in deltas[1:])


# One of several


TREE = {
    "type": "object",
    "properties": {
        "children": {"type": "array", "items": {"$ref": "#"}},
        "$ref": {"$ref": "#/$defs/kind"},
        "default": {"$ref": "#/properties/$ref"},
    },
    "required": ["$ref"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$defs": {"kind": {"enum": ["leaf", {"$ref": "#"}]}},
}
FOREST = {"type": "function", "function": {"name": "Tree", "parameters": TREE}}
REQUIRED = {**HI, "tools": [TOOL, FOREST], "tool_choice": "required"}
GROWN = {
    "$ref": "leaf",
    "children": [{"$ref": {"$ref": "#"}, "default": "leaf"}],
    "default": "leaf",
}


@pytest.mark.parametrize(
    ("name", "value"), [("City", {"name": "Par\u00eds"}), ("Tree", GROWN)], ids=["City", "Tree"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_of_several_tools_that_are_required_the_model_calls_one(
    name: str, value: Any, stream: bool
) -> None:
    answer = json.dumps({"form": name, "value": value})
    async with face("{}", {"content": answer, "chunk_ms": 30}) as helper:
        response = await helper.http.post(CHAT, json={**REQUIRED, "stream": stream})
        if stream:
            told = [f.json for f in frames(response.text)[:-1]]
            deltas = [choice["delta"] for each in told for choice in each["choices"]]
            (made,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
            assert made["index"] == 0
            assert not any(delta.get("content") for delta in deltas)
            assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"
        else:
            (choice,) = response.json()["choices"]
            (made,) = choice["message"]["tool_calls"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
        assert made["function"]["name"] == name
        assert json.loads(made["function"]["arguments"]) == value
        assert made["id"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"form": "City", "value": GROWN},
        {"form": "Town", "value": {}},
    ],
)
async def test_a_call_of_none_of_them_is_repaired(wrong: Any) -> None:
    right = json.dumps({"form": "City", "value": {"name": "Paris"}})
    async with face("{}", json.dumps(wrong), right) as helper:
        response = await helper.http.post(CHAT, json=REQUIRED)
        assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"] == {
            "name": "City", "arguments": CITY,
        }  # fmt: skip


# Tools that are not forced


async def test_tools_are_left_out_where_the_manifest_says_so() -> None:
    fields = {"functions": [{"name": "f"}], "function_call": {"name": "f"}}
    ignored = "functions, function_call"
    async with face(chat=ChatConfig(caller_tools="ignore")) as helper:
        response = await helper.http.post(CHAT, json={**HI, **fields})
        assert response.status_code == 200
        assert response.headers["X-Diptych-Warning"] == f"ignored: {ignored}"
        assert response.json()["choices"][0]["message"]["content"] == "Hello!"


async def test_a_choice_without_tools_is_no_error() -> None:
    async with face() as helper:
        for fields, ignored in (
            ({"tools": [TOOL], "tool_choice": "none"}, None),
            ({"tool_choice": "required"}, "tool_choice"),
        ):
            response = await helper.http.post(CHAT, json={**HI, **fields})
            assert response.status_code == 200
            warning = response.headers.get("X-Diptych-Warning")
            assert warning == (ignored and f"ignored: {ignored}")
