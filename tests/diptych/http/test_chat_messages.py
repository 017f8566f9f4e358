"""What the messages of a chat may hold: parts that are no text, results, an answer to go on."""

from typing import Any

import pytest
from support.face import HI, face, openai_error

from diptych.core import prompt
from diptych.core.events import RunRequested
from diptych.core.messages import Message, NativeCall

CHAT = "/v1/chat/completions"
RUNS = "/v1/runs"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "AAAA"}}
PARTS = {"image": IMAGE, "audio": AUDIO, "file": FILE}
CALL = {"id": "c1", "type": "function", "function": {"name": "City", "arguments": '{"n": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "done"}
USER = {"role": "user", "content": "hi"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def said(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


async def asked(helper: Any, path: str, *messages: Any) -> RunRequested:
    """Send messages, and give what the newest run's record begins with."""
    response = await helper.http.post(path, json=said(*messages))
    assert response.status_code in (200, 202), response.text
    entry, *_ = await helper.house.runs.entries()
    first = (await helper.house.events(entry.run_id))[0]
    assert isinstance(first, RunRequested)
    return first


async def test_a_part_that_the_model_takes_is_passed_on_as_it_is() -> None:
    async with face(inputs=("image", "audio", "file")) as helper:
        for path in (CHAT, RUNS):
            for part in PARTS.values():
                content = [text("```\na\n```"), part, text("Explain")]
                found = await asked(helper, path, {"role": "user", "content": content})
                assert found == RunRequested("```\na\n```\nExplain", parts=(part,))


async def test_a_part_that_the_model_does_not_take_is_refused_by_its_place() -> None:
    for kind, part in PARTS.items():
        inputs = tuple(each for each in PARTS if each != kind)
        messages = [USER, {"role": "assistant", "content": "yes?"}]
        messages.append({"role": "user", "content": [text("see"), part]})
        async with face(inputs=inputs) as helper:
            for path in (CHAT, RUNS):
                refused = await helper.http.post(path, json=said(*messages))
                error = openai_error(refused, 400)
                assert error["param"] == "messages[2].content[1]"
                assert error["code"] == "unsupported_content"
                assert f"takes text, {', '.join(inputs)}" in error["message"]
                assert f"add {kind} to model.inputs" in error["message"]
            assert await helper.house.runs.entries() == []


async def test_a_part_of_the_wrong_form_is_refused() -> None:
    async with face(inputs=("image", "audio", "file")) as helper:
        for message, param in (
            ({"role": "system", "content": [IMAGE]}, "content[0]"),
            ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url"),
            ({"role": "user", "content": [{"type": "video", "video": {}}]}, "content[0].type"),
        ):
            response = await helper.http.post(CHAT, json=said(USER, message, USER))
            assert openai_error(response, 400)["param"] == f"messages[1].{param}"


async def test_reasoning_in_a_history_is_dropped() -> None:
    async with face() as helper:
        for part in (
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "redacted_thinking", "data": "x"},
        ):
            both = [part, {"type": "output_text", "text": "Yes?"}]
            said = [{"role": "assistant", "content": content} for content in (both, [part])]
            for path in (CHAT, RUNS):
                found = await asked(helper, path, USER, *said, USER)
                assert found.earlier == (Message("user", "hi"), Message("assistant", "Yes?"))


@pytest.mark.parametrize(
    ("before", "name", "arguments"),
    [
        pytest.param([{"name": "add", "arguments": '{"a": 1}'}], "add", '{"a": 1}', id="its call"),
        pytest.param([], "add", "{}", id="no call"),
    ],
)
async def test_the_result_of_a_function_is_that_of_a_tool(
    before: list[Any], name: str, arguments: str
) -> None:
    calls = [{"role": "assistant", "content": None, "function_call": call} for call in before]
    result = {"role": "function", "name": name, "content": "2"}
    async with face() as helper:
        found = await asked(helper, CHAT, USER, *calls, result, USER)
        (call,) = found.earlier[1].calls
        assert (call.name, call.arguments) == (name, arguments)
        assert found.earlier[2:] == (Message("tool", "2", call_id=call.id),)


async def test_calls_and_results_of_a_history_are_kept_as_such() -> None:
    async with face() as helper:
        found = await asked(helper, CHAT, USER, CALLED, RESULT, USER)
        assert found == RunRequested(
            "hi",
            (
                Message("user", "hi"),
                Message("assistant", "", (NativeCall("c1", "City", '{"n": 1}'),)),
                Message("tool", "done", call_id="c1"),
            ),
        )
        sent = helper.house.model.requests[0]
        assert sent[-1].role == "user"
        assert "Result of tool City:\n<result-" in sent[-1].content
        assert ">\ndone\n</result-" in sent[-1].content
        assert '{"tool": "City", "arguments": {"n": 1}}' in sent[-2].content


async def test_calls_and_results_that_do_not_belong_together_are_refused() -> None:
    async with face() as helper:
        for messages, param in (
            ([USER, RESULT], "messages[1].tool_call_id"),
            ([USER, CALLED, RESULT, RESULT], "messages[3].tool_call_id"),
            ([USER, CALLED, USER], "messages[1].tool_calls[0]"),
            (
                [USER, {**CALLED, "tool_calls": [{"id": "c1"}]}, RESULT],
                "messages[1].tool_calls[0].function",
            ),
        ):
            response = await helper.http.post(CHAT, json=said(*messages))
            assert openai_error(response, 400)["param"] == param


async def test_an_assistant_s_last_message_is_continued() -> None:
    async with face("{}", "ing of a poem.") as helper:
        opening = {"role": "assistant", "content": "The beginn"}
        found = await asked(helper, CHAT, USER, opening)
        assert found.earlier == (Message("user", "hi"), Message("assistant", "The beginn"))
        assert found.message == prompt.CONTINUE_ANSWER
        sent = [(m.role, m.content) for m in helper.house.model.requests[-1]]
        assert ("assistant", "The beginn") in sent


async def test_the_last_answer_of_a_session_is_continued_without_being_told_again() -> None:
    async with face("{}", "One") as helper:
        body = {**HI, "session_id": "s"}
        await helper.http.post(CHAT, json=body)
        body["messages"] = [*HI["messages"], {"role": "assistant", "content": "One"}]
        assert (await helper.http.post(CHAT, json=body)).status_code == 200
        runs = await helper.house.runs.entries()
        events = [(await helper.house.events(run.run_id))[0] for run in runs]
        assert RunRequested(prompt.CONTINUE_ANSWER) in events


async def test_null_counts_as_absent_in_every_field_that_is_not_required() -> None:
    nulls = dict.fromkeys(
        [
            *("model", "stream", "stream_options", "response_format", "tools", "tool_choice"),
            *("functions", "function_call", "session_id", "on_disconnect", "n", "stop", "audio"),
            *("temperature", "max_tokens", "max_completion_tokens", "seed", "user", "metadata"),
            *("output_schema", "budget", "parallel_tool_calls", "logprobs", "reasoning_effort"),
        ]
    )
    message = dict.fromkeys(["name", "tool_calls", "tool_call_id", "function_call", "refusal"])
    async with face() as helper:
        body = {**nulls, "messages": [{**USER, **message}]}
        response = await helper.http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        assert "X-Diptych-Warning" not in response.headers
        body["stream_options"] = {"include_usage": None}
        assert (await helper.http.post(CHAT, json=body)).status_code == 200
        names = ("messages", "session_id", "on_disconnect", "output_schema", "max_steps")
        run = {"input": "hi", **dict.fromkeys(names)}
        assert (await helper.http.post(RUNS, json=run)).status_code == 202
