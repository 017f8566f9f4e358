"""Chat completions without a socket: what each frame says, sessions, and how failures are told."""

import json
import re
from typing import Any

import pytest
from support.doubles import FunctionTools
from support.face import HI, NAME, Face, face, openai_error
from support.stack import Frame, call, frames, text_of

from diptych.manifest.settings import ChatConfig
from diptych.runs.definition import AgentDefinition

CHAT = "/v1/chat/completions"
ECHO = call("echo", text="hello")
FAILS = {"error": "it broke"}


async def echo(text: str = "") -> str:
    return text


async def ask(helper: Face, text: str = "hi", **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return await helper.http.post(CHAT, json=body)


async def streamed(helper: Face, text: str = "hi", **fields: Any) -> list[Frame]:
    response = await ask(helper, text, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return frames(response.text)


async def test_a_completion_is_of_openais_form() -> None:
    async with face("{}", {"content": "Hello!", "usage": {"prompt_tokens": 7}}) as helper:
        response = await ask(helper)
        body = response.json()
        assert body["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        assert (body["object"], body["model"]) == ("chat.completion", NAME)
        assert body["id"] == response.headers["X-Run-ID"]
        assert body["usage"]["total_tokens"] == sum(
            body["usage"][kind] for kind in ("prompt_tokens", "completion_tokens")
        )
        assert body["usage"]["prompt_tokens"] > 7


async def test_usage_is_streamed_only_when_it_is_asked_for_and_is_the_same_as_unstreamed() -> None:
    async with face("{}", "Hello there!") as helper:
        whole = (await ask(helper)).json()["usage"]
        with_usage = await streamed(helper, stream_options={"include_usage": True})
        assert with_usage[-2].json["usage"] == whole
        for options in (None, {}, {"include_usage": False}):
            told = await streamed(helper, stream_options=options)
            assert not any("usage" in frame.data for frame in told)


async def test_progress_is_a_valid_and_empty_chunk_with_keys_of_its_own() -> None:
    async with face(ECHO, "{}", "x", tools={"echo": echo}) as helper:
        (progress,) = [f for f in await streamed(helper) if f.event == "progress"]
        assert progress.id is None
        chunk = progress.json
        assert chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        shown = {key: chunk[key] for key in ("type", "step", "max_steps", "action", "target")}
        assert shown == {
            "type": "progress",
            "step": 1,
            "max_steps": 5,
            "action": "tool_call",
            "target": "echo",
        }


async def test_reasoning_is_told_in_the_form_that_clients_know_and_never_as_the_answer() -> None:
    replies = ("<think>Need a tool?</think>{}", "<think>No. Greet.</think>Hello!")
    async with face(*replies) as helper:
        told = await streamed(helper)
        deltas = [c["delta"] for f in told if f.data != "[DONE]" for c in f.json["choices"]]
        reasoning = [d["reasoning_content"] for d in deltas if "reasoning_content" in d]
        assert re.sub(r"\s", "", "".join(reasoning)) == "Needatool?No.Greet."
        assert text_of(told) == "Hello!"
        assert {f.event for f in told} == {None}
        assert [f.id for f in told if "reasoning_content" in f.data] == [None] * len(reasoning)
        message = (await ask(helper)).json()["choices"][0]["message"]
        assert message["content"] == "Hello!"
        assert message["reasoning_content"] == "".join(reasoning)


async def test_the_agent_is_a_model_that_can_be_looked_up() -> None:
    async with face() as helper:
        (listed,) = (await helper.http.get("/v1/models")).json()["data"]
        assert (await helper.http.get(f"/v1/models/{NAME}")).json() == listed
        for other in ("gpt-5", f"{NAME}x", "%00", NAME.upper()):
            response = await helper.http.get(f"/v1/models/{other}")
            assert openai_error(response, 404)["code"] == "model_not_found"


async def test_the_id_of_a_frame_is_the_seq_of_its_text_event() -> None:
    async with face("{}", {"content": "one two three", "chunk_ms": 30}) as helper:
        response = await ask(helper, stream=True)
        told = [f for f in frames(response.text) if f.id]
        records = await helper.house.store.read(response.headers["X-Run-ID"])
        texts = {str(r.seq): r.content for r in records if r.event_type == "text"}
        assert {f.id: f.json["choices"][0]["delta"]["content"] for f in told} == texts
        assert len(texts) == 3


# Sessions


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_is_continued_by_header_or_by_field(stream: bool) -> None:
    async with face("{}", "Yes.") as helper:
        for number, by_header in enumerate((True, False, True)):
            body = {**HI, "stream": stream} | ({} if by_header else {"session_id": "s-1"})
            headers = {"X-Session-ID": "s-1"} if by_header else {}
            response = await helper.http.post(CHAT, json=body, headers=headers)
            assert response.headers["X-Session-ID"] == "s-1"
            heard = [
                m.content for m in helper.house.model.requests[2 * number] if m.role != "system"
            ]
            assert heard == [*["hi", "Yes."] * number, "hi"]


async def test_the_messages_of_a_request_are_its_history() -> None:
    said = [
        {"role": "developer", "content": "Rhyme."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}],
        },
        {"role": "assistant", "content": "ok"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "two"},
    ]
    async with face() as helper:
        assert (await helper.http.post(CHAT, json={"messages": said})).status_code == 200
        system, *heard = helper.house.model.requests[0]
        assert system.content.endswith("\n> Rhyme.")
        assert [(m.role, m.content) for m in heard] == [
            ("user", "o\nne"),
            ("assistant", "ok"),
            ("user", "two"),
        ]


async def test_a_caller_s_system_text_can_be_switched_off_in_every_protocol() -> None:
    said = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "one"}]
    async with face(*["{}", "Hello!"] * 3, chat=ChatConfig(caller_system="off")) as helper:
        reply = await helper.http.post(CHAT, json={"messages": said})
        assert reply.headers["X-Diptych-Warning"] == "ignored: system"
        await helper.http.post("/v1/runs", json={"messages": said})
        plain = await helper.http.post(CHAT, json={"messages": said[1:]})
        assert "X-Diptych-Warning" not in plain.headers
        events = (await helper.http.get("/memory/events")).text
        asked = [m.content for request in helper.house.model.requests for m in request]
    assert "Rhyme." not in events + "".join(asked)


# Failures


async def test_a_model_that_fails_before_anything_is_told_is_an_http_error() -> None:
    async with face(FAILS) as helper:
        for stream in (False, True):
            response = await ask(helper, stream=stream)
            error = openai_error(response, 502)
            assert error["code"] == "model_failed"
            assert error["type"] == "server_error"
            assert "x-should-retry" not in response.headers
            entry = await helper.house.runs.entry(response.headers["X-Run-ID"])
            assert entry.status == "failed"
            assert response.headers["X-Session-ID"] == entry.session_id


async def test_a_model_that_fails_after_a_call_must_not_be_asked_again_by_itself() -> None:
    tools = FunctionTools({"echo": echo})
    async with face(ECHO, FAILS, tools=tools) as helper:
        response = await ask(helper)
        assert openai_error(response, 502)["code"] == "model_failed"
        assert response.headers["x-should-retry"] == "false"
        assert len(tools.called) == 1


async def test_a_model_that_fails_after_progress_is_an_error_frame_and_no_done() -> None:
    async with face(ECHO, FAILS, tools={"echo": echo}) as helper:
        told = await streamed(helper)
        assert [f.event for f in told] == [None, "progress", None]
        error = told[-1].json["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == "model_failed"


async def test_a_full_agent_says_when_to_come_back() -> None:
    async with face(definition=AgentDefinition(max_runs=0)) as helper:
        response = await ask(helper)
        assert openai_error(response, 503)["code"] == "overloaded"
        assert int(response.headers["Retry-After"]) >= 1


# Text that is hard to carry


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a\nb\r\nc\rd\u2028e\u2029f\x85g", id="line breaks of all kinds"),
        pytest.param('data: x\n\nevent: y\nid: 3\n\n"}', id="text that looks like frames"),
        pytest.param(" ".join(map(str, range(4_000))), id="19,000 characters"),
    ],
)
async def test_a_text_arrives_as_it_was_streamed_or_not(text: str) -> None:
    async with face("{}", text) as helper:
        assert (await ask(helper)).json()["choices"][0]["message"]["content"] == text
        assert text_of(await streamed(helper)) == text
        events = (await helper.http.get("/memory/events")).json()["events"]
        assert events[-1]["content"] == text


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"\udfff": "\ud800"}, id="half a surrogate pair in a value"),
        pytest.param({"n": 2**80}, id="a number of more than 64 bits"),
        pytest.param({"n": [float("nan"), float("inf")]}, id="a number that JSON does not have"),
        pytest.param(json.loads("[" * 400 + "]" * 400), id="deep lists"),
    ],
)
async def test_a_result_that_is_hard_to_carry_breaks_nothing(value: Any) -> None:
    async def odd() -> Any:
        return value

    async with face(call("odd"), "{}", "Done.", tools={"odd": odd}) as helper:
        response = await ask(helper)
        assert response.status_code == 200, response.text
        for path in ("/memory/events", f"/v1/runs/{response.headers['X-Run-ID']}/events"):
            read = await helper.http.get(path)
            assert read.status_code == 200
            assert "tool_result" in read.text
