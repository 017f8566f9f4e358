"""What a request looks like on the wire: messages, native calls, tools, formats, parameters."""

import json
from typing import Any

import pytest
from support.upstream_habits import TIME, WEATHER

from diptych.core.messages import Message, NativeCall
from diptych.core.model_request import FunctionTool, ModelRequest
from diptych.manifest.settings import ModelConfig
from diptych.models.dialect import Dialect
from diptych.models.encoding import encode_request, request_fields
from diptych.models.error_report import read_error

ASKED = (Message("user", "Hello"),)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
CLOSED = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def fields(
    request: ModelRequest,
    *,
    streamed: bool = False,
    dialect: Dialect | None = None,
    **settings: Any,
) -> dict[str, Any]:
    config = ModelConfig("m", "http://h/v1", **settings)
    return request_fields(config, request, dialect or Dialect(), streamed=streamed)


def messages(*said: Message, dialect: Dialect | None = None) -> list[dict[str, Any]]:
    found = json.loads(encode_request({}, said, dialect))["messages"]
    assert isinstance(found, list)
    return found


def test_native_calls_and_their_results_are_sent() -> None:
    calls = (NativeCall("a", "get_weather", '{"city":"Oslo"}'), NativeCall("b", "get_time", "{}"))
    sent = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in calls
    ]
    assert messages(
        Message("assistant", "", calls=calls),
        Message("tool", "Rain.", call_id="a"),
        Message("assistant", "Let me see.", calls=calls[1:]),
    ) == [
        {"role": "assistant", "content": None, "tool_calls": sent},
        {"role": "tool", "content": "Rain.", "tool_call_id": "a"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": sent[1:]},
    ]


@pytest.mark.parametrize("written", ['{"city": "Os', '{"a": "\ud83d'])
def test_arguments_that_are_no_object_do_not_break_later_requests(written: str) -> None:
    sent = messages(Message("assistant", "", calls=(NativeCall("a", "f", written),)))
    assert isinstance(json.loads(sent[0]["tool_calls"][0]["function"]["arguments"]), dict)


def test_parts_follow_the_text() -> None:
    assert messages(Message("user", "What is it?", parts=(IMAGE,)))[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        IMAGE,
    ]
    assert messages(Message("user", "", parts=(IMAGE,)))[0]["content"] == [IMAGE]


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        pytest.param(
            [Message("system", "S"), Message("assistant", "A"), Message("user", "U")],
            [("assistant", "A"), ("user", "S\n\nU")],
            id="the first user message comes later",
        ),
        pytest.param([Message("system", "S")], [("user", "S")], id="nobody asked"),
        pytest.param([Message("user", "U")], [("user", "U")], id="no system"),
    ],
)
def test_the_systems_text_goes_to_the_first_user_message(
    said: list[Message], sent: list[tuple[str, str]]
) -> None:
    folded = messages(*said, dialect=Dialect(takes_system_role=False))
    assert [(message["role"], message["content"]) for message in folded] == sent


def test_ids_are_shortened_alike_in_calls_and_results() -> None:
    sent = messages(
        Message("assistant", "", calls=(NativeCall("call_long_one", "f", "{}"),)),
        Message("tool", "ok", call_id="call_long_one"),
        dialect=Dialect(has_short_ids=True),
    )
    assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"]
    assert len(sent[1]["tool_call_id"]) == 9
    assert sent[1]["tool_call_id"].isalnum()


def test_tools_are_sent_without_a_choice() -> None:
    sent = json.loads(encode_request(fields(ModelRequest(ASKED, tools=(WEATHER, TIME))), ASKED))
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["get_weather", "get_time"]
    assert sent["tools"][0] == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Say what the weather is.",
            "parameters": WEATHER.parameters,
        },
    }
    assert "tool_choice" not in sent


def test_tools_that_hold_half_a_character_are_sent_all_the_same() -> None:
    broken = FunctionTool("echo", "says \ud83d", {"type": "object"})
    sent = json.loads(encode_request(fields(ModelRequest(ASKED, tools=(broken,))), ASKED))
    assert sent["tools"][0]["function"]["name"] == "echo"


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        pytest.param(CLOSED, True, id="closed"),
        pytest.param({**CLOSED, "additionalProperties": True}, False, id="open"),
        pytest.param({**CLOSED, "required": []}, False, id="optional"),
    ],
)
def test_a_schema_is_sent_strict_where_openai_takes_it_so(schema: Any, strict: bool) -> None:
    sent = fields(ModelRequest(ASKED, output_schema=schema))
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": strict},
    }


@pytest.mark.parametrize(
    ("schema", "refused", "kind"),
    [
        pytest.param(CLOSED, {"json_schema"}, "json_object", id="no schemas"),
        pytest.param(CLOSED, {"json_schema", "json_object"}, None, id="no formats"),
        pytest.param({}, set(), "json_object", id="any object"),
    ],
)
def test_the_format_is_the_best_that_the_endpoint_takes(
    schema: Any, refused: set[str], kind: str | None
) -> None:
    request = ModelRequest(ASKED, output_schema=schema)
    sent = fields(request, dialect=Dialect(refused_formats=frozenset(refused)))
    assert sent.get("response_format", {}).get("type") == kind


@pytest.mark.parametrize(
    ("parameters", "sent"),
    [
        pytest.param(
            {"temperature": 0.9, "seed": 7},
            {"temperature": 0.9, "max_tokens": 9, "seed": 7},
            id="overlaid",
        ),
        pytest.param(
            {"temperature": None}, {"max_tokens": 9}, id="taken away"
        ),
    ],
)  # fmt: skip
def test_parameters_of_a_request_overlay_the_manifests(
    parameters: Any, sent: dict[str, Any]
) -> None:
    request = ModelRequest(ASKED, parameters=parameters)
    found = fields(request, temperature=0.2, max_tokens=9)
    assert found == {"model": "m", "stream": False, **sent}


def test_a_dialect_writes_the_limit_in_its_way() -> None:
    dialect = Dialect(max_tokens_name="max_completion_tokens", reply_limit=5)
    assert fields(ModelRequest(ASKED), dialect=dialect, max_tokens=9)["max_completion_tokens"] == 5


def test_what_two_requests_learn_is_added_up_without_what_was_of_one_only() -> None:
    one = Dialect(frozenset({"seed"}), no_reasoning=" ", reply_limit=5, skips_format=True)
    other = Dialect(
        frozenset({"stop"}), "max_completion_tokens", takes_system_role=False,
        wants_reasoning=True, takes_extra=False,
    )  # fmt: skip
    both = Dialect(
        frozenset({"seed", "stop"}), "max_completion_tokens", takes_system_role=False,
        wants_reasoning=True, no_reasoning=" ", takes_extra=False,
    )  # fmt: skip
    assert one.merged(other) == other.merged(one) == both


CALLS = (NativeCall("a", "get_weather", '{"city":"Oslo"}'), NativeCall("b", "get_time", "{}"))
CALLED = (
    Message("user", "And?"),
    Message("assistant", "Let me see.", calls=CALLS),
    Message("tool", "Rain.", call_id="a"),
    Message("tool", "Noon.", call_id="b"),
)


def test_single_calls_have_messages_of_their_own_with_their_results_behind_them() -> None:
    twice = (*CALLED, *CALLED[1:])  # a server may give the same ids again
    sent = messages(*twice, dialect=Dialect(has_single_calls=True))
    of_step = ["assistant", "tool", "assistant", "tool"]
    assert [message["role"] for message in sent] == ["user", *of_step, *of_step]
    assert [message["content"] for message in sent[1:5]] == ["Let me see.", "Rain.", None, "Noon."]
    for said, result in zip(sent[1::2], sent[2::2], strict=True):
        assert [call["id"] for call in said["tool_calls"]] == [result["tool_call_id"]]


@pytest.mark.parametrize(
    "dialect", [Dialect(takes_tool_messages=False), Dialect(writes_calls=True)]
)
def test_calls_and_results_may_be_written_as_text_between_the_marks(dialect: Dialect) -> None:
    sent = json.loads(encode_request({}, (*CALLED, Message("user", "Well?")), dialect, "5f0c"))
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert (
        '{"tool": "get_weather", "arguments": {"city": "Oslo"}}' in sent["messages"][1]["content"]
    )
    told = sent["messages"][2]["content"]
    assert "<result-5f0c>\nRain.\n</result-5f0c>" in told
    assert told.endswith("Well?")


SIGNATURE = {"google": {"thought_signature": "Ej"}}
SKIPPED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
SIGNED = (NativeCall("a", "get_time", "{}", SIGNATURE), NativeCall("b", "get_time", "{}"))


def extras(*calls: NativeCall, dialect: Dialect) -> list[Any]:
    sent = messages(Message("assistant", "", calls=calls), dialect=dialect)
    return [call.get("extra_content") for call in sent[0]["tool_calls"]]


@pytest.mark.parametrize("dialect", [Dialect(), Dialect(signs_calls=True)])
def test_what_came_beside_a_call_goes_back_as_it_came(dialect: Dialect) -> None:
    assert extras(*SIGNED, dialect=dialect) == [SIGNATURE, None]  # Gemini signs the first alone


def test_only_messages_that_nobody_signed_get_a_signature_of_ours() -> None:
    assert extras(*CALLS, dialect=Dialect(signs_calls=True)) == [SKIPPED, SKIPPED]
    assert extras(*CALLS, dialect=Dialect()) == [None, None]
    assert extras(*SIGNED, dialect=Dialect(takes_extra=False)) == [None, None]


def test_reasoning_goes_back_where_it_is_wanted_and_only_there() -> None:
    thought = Message("assistant", "", calls=CALLS, reasoning="It rains.")
    said = (*ASKED, thought, *CALLED[2:], Message("assistant", "Yes."))
    assert all("reasoning_content" not in message for message in messages(*said))
    wanted = messages(*said, dialect=Dialect(wants_reasoning=True))
    assert [m.get("reasoning_content") for m in wanted] == [None, "It rains.", None, None, ""]
    text = Dialect(wants_reasoning=True, takes_tool_messages=False)
    assert "It rains." not in json.dumps(messages(*said, dialect=text))


THOUGHT = (*CALLED[:1], Message("assistant", "", calls=CALLS, reasoning="Hm."), *CALLED[2:])


@pytest.mark.parametrize(("said", "steps"), [(CALLED, ["", " "]), (THOUGHT, [""]), (ASKED, [])])
def test_reasoning_that_is_missed_is_sent_and_the_steps_come_to_an_end(
    said: tuple[Message, ...], steps: list[str]
) -> None:
    words = "The `reasoning_content` in the thinking mode must be passed back to the API."
    report, request = read_error({"error": {"message": words}}, 400), ModelRequest(said)
    taken: list[Dialect] = []
    dialect: Dialect | None = Dialect()
    while dialect and (dialect := dialect.adapted(report, fields(request), request)):
        taken.append(dialect)
    assert [d.no_reasoning for d in taken] == steps
    assert all(d.wants_reasoning for d in taken)


# Words of templates, as llama.cpp reports them (seen with `make models`).
TEMPLATE_REFUSALS: list[tuple[str, tuple[Message, ...], Dialect]] = [
    (
        "Jinja Exception: This model only supports single tool-calls at once!",
        CALLED,
        Dialect(has_single_calls=True),
    ),
    (
        "Jinja Exception: Tool call IDs should be alphanumeric strings with length 9!",
        CALLED,
        Dialect(has_short_ids=True),
    ),
    (
        "Conversation roles must alternate user/assistant/user/assistant/...",
        CALLED,
        Dialect(takes_tool_messages=False),
    ),
    (
        "After the optional system message, conversation roles must alternate user/assistant/...",
        (*CALLED, Message("user", "Well?")),
        Dialect(writes_calls=True),
    ),
]


@pytest.mark.parametrize(("words", "said", "learned"), TEMPLATE_REFUSALS)
def test_what_a_template_refuses_is_written_otherwise_once(
    words: str, said: tuple[Message, ...], learned: Dialect
) -> None:
    request = ModelRequest(said)
    report = read_error({"error": {"code": 400, "message": words}}, 400)
    assert Dialect().adapted(report, fields(request), request) == learned
    assert learned.adapted(report, fields(request), request) is None
    without = ModelRequest(ASKED)
    assert Dialect().adapted(report, fields(without), without) is None
