"""Responses without a socket: what the object and the events say, and what a request may bring."""

import asyncio
import json
from typing import Any

import pytest
from support.face import NAME, Face, Speaker, error_of, face, openai_error
from support.stack import Frame, call, frames, until

from diptych.core.events import RunRequested
from diptych.manifest.settings import ChatConfig

PATH = "/v1/responses"
ASK = {"input": "hi"}
CITY = {"type": "function", "name": "City", "parameters": {"properties": {"n": {"type": "string"}}}}
TOWN = {**CITY, "name": "Town"}
FORCED = {"tools": [CITY], "tool_choice": {"type": "function", "name": "City"}}


ASKED = {"role": "user", "content": "x"}
CALLED = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
RETURNED = {"type": "function_call_output", "call_id": "a", "output": "1"}


async def echo(text: str = "") -> str:
    return text


async def post(helper: Face, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    return await helper.http.post(PATH, json={**ASK, **fields}, headers=headers)


async def created(helper: Face, **fields: Any) -> dict[str, Any]:
    reply = await post(helper, **fields)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


async def streamed(helper: Face, **fields: Any) -> list[Frame]:
    return checked((await post(helper, stream=True, **fields)).text)


def checked(text: str) -> list[Frame]:
    told = frames(text)
    assert all(each.event == each.json["type"] for each in told)
    return told


def numbers(told: list[Frame]) -> list[int]:
    return [each.json["sequence_number"] for each in told]


def joined(told: list[Frame]) -> str:
    return "".join(f.json["delta"] for f in told if f.event == "response.output_text.delta")


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


async def replay(helper: Face, run_id: str, after: int | None = None) -> str:
    query = "" if after is None else f"&starting_after={after}"
    return (await helper.http.get(f"{PATH}/{run_id}?stream=true{query}")).text


# The object and the stream


async def test_a_response_is_a_run_and_is_read_again_as_it_was_given() -> None:
    async with face(call("echo", text="x"), "{}", "Hello!", tools={"echo": echo}) as helper:
        reply = await post(helper, metadata={"a": "b"}, instructions="Be kind.", model=NAME)
        body = reply.json()
        assert (body["object"], body["status"], body["model"]) == ("response", "completed", NAME)
        (item,) = body["output"]  # the agent's own calls are not shown
        assert (item["type"], item["status"], text_of(body)) == ("message", "completed", "Hello!")
        assert body["id"] == reply.headers["X-Run-ID"]
        assert body["conversation"] == {"id": reply.headers["X-Session-ID"]}
        assert (body["metadata"], body["instructions"]) == ({"a": "b"}, "Be kind.")
        usage = body["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 3
        assert (await helper.http.get(f"{PATH}/{body['id']}")).json() == body
        run = (await helper.http.get(f"/v1/runs/{body['id']}")).json()
        assert run["answer"] == "Hello!"


async def test_a_stream_has_openais_events_in_their_order_and_the_whole_at_its_end() -> None:
    async with face("{}", "Hello you!") as helper:
        told = await streamed(helper)
        assert [f.event for f in told if f.event != "response.output_text.delta"] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert numbers(told) == list(range(len(told)))
        whole = told[-1].json["response"]
        assert joined(told) == text_of(whole) == "Hello you!"
        assert (await helper.http.get(f"{PATH}/{whole['id']}")).json() == whole


async def test_a_stream_can_be_taken_up_after_each_of_its_events_byte_for_byte() -> None:
    async with face(call("echo"), "{}", "One two three.", tools={"echo": echo}) as helper:
        text = (await post(helper, stream=True)).text
        run_id = frames(text)[0].json["response"]["id"]
        assert await replay(helper, run_id) == text
        for number, each in enumerate(frames(text)):
            rest = await replay(helper, run_id, number)
            assert text.endswith(rest)
            assert numbers(frames(rest)) == list(range(number + 1, len(frames(text)))), each
        far = f"{PATH}/{run_id}?stream=true&starting_after={len(frames(text))}"
        error = openai_error(await helper.http.get(far), 400)
        assert error["param"] == "starting_after"
        assert str(len(frames(text)) - 1) in error["message"]


# Background


async def test_a_background_response_comes_at_once_and_goes_on_without_its_caller() -> None:
    model = Speaker("one ", ..., "two")
    async with face(model=model) as helper:
        body = await created(helper, background=True)
        assert body["status"] in ("queued", "in_progress")
        assert (body["background"], body["output"], body["usage"]) == (True, [], None)
        await model.has_stopped.wait()
        path = f"{PATH}/{body['id']}"

        async def is_told() -> bool:
            records = await helper.house.runs.records(body["id"])
            return records[-1].event_type == "text"

        await until(is_told)
        assert (await helper.http.get(path)).json()["status"] == "in_progress"
        following = asyncio.create_task(replay(helper, body["id"], 1))
        await asyncio.sleep(0)
        model.go.set()
        rest = await following
        assert await replay(helper, body["id"], 1) == rest
        assert joined(checked(rest)) == "one two"
        ended = (await helper.http.get(path)).json()
        assert (ended["status"], ended["background"]) == ("completed", True)


async def test_a_response_is_cancelled_and_says_so_to_whoever_reads_it() -> None:
    model = Speaker("one ", ...)
    async with face(model=model) as helper:
        body = await created(helper, background=True)
        await model.has_stopped.wait()
        following = asyncio.create_task(replay(helper, body["id"]))
        cancelled = (await helper.http.post(f"{PATH}/{body['id']}/cancel")).json()
        assert (cancelled["status"], cancelled["error"]["code"]) == ("cancelled", "aborted")
        told = checked(await following)
        assert told[-1].event == "response.failed"
        assert told[-1].json["response"] == cancelled
        again = await helper.http.post(f"{PATH}/{body['id']}/cancel")
        assert again.json() == cancelled


async def test_what_goes_on_without_its_caller_is_not_cancelled_with_it() -> None:
    async with face() as helper:
        both = await post(helper, background=True, on_disconnect="cancel")
        assert openai_error(both, 400)["param"] == "on_disconnect"


# Ends


@pytest.mark.parametrize(
    ("finish_reason", "reason"),
    [("length", "max_output_tokens"), ("content_filter", "content_filter")],
)
async def test_an_answer_that_was_cut_is_incomplete_and_says_why(
    finish_reason: str, reason: str
) -> None:
    async with face("{}", {"content": "Half", "finish_reason": finish_reason}) as helper:
        told = await streamed(helper)
        assert told[-1].event == "response.incomplete"
        body = told[-1].json["response"]
        assert body["incomplete_details"] == {"reason": reason}
        assert body["output"][0]["status"] == body["status"] == "incomplete"
        assert body["completed_at"] is None


async def test_a_run_that_fails_is_an_http_error_and_in_a_stream_its_last_event() -> None:
    async with face("{}") as helper:  # then the script is used up
        reply = await post(helper)
        assert openai_error(reply, 502)["code"] == "mock_exhausted"
        assert reply.headers["X-Run-ID"]
        told = await streamed(helper)
        failed = told[-1].json["response"]
        assert (told[-1].event, failed["status"]) == ("response.failed", "failed")
        assert failed["error"]["code"] == "mock_exhausted"
        assert (await helper.http.get(f"{PATH}/{failed['id']}")).json() == failed


async def test_reasoning_is_told_live_and_changes_no_number() -> None:
    async with face(*("{}", "<think>Be kind.</think>Hi.") * 2) as helper:
        live = await streamed(helper)
        reasoning = [f for f in live if f.event == "response.reasoning_text.delta"]
        assert "".join(f.json["delta"] for f in reasoning).strip() == "Be kind."
        kept = [f for f in live if f not in reasoning]
        run_id = live[0].json["response"]["id"]
        assert checked(await replay(helper, run_id)) == kept
        assert numbers(kept) == list(range(len(kept)))
        for each in reasoning:
            before = live[live.index(each) - 1].json["sequence_number"]
            assert each.json["sequence_number"] == before
        whole = await created(helper)
        assert [item["type"] for item in whole["output"]] == ["reasoning", "message"]
        assert text_of(whole) == "Hi."


# Sessions


async def test_a_response_goes_on_in_the_session_of_the_one_before_it() -> None:
    async with face("{}", "One.") as helper:
        first = await created(helper)
        second = await created(helper, previous_response_id=first["id"], input="more")
        assert second["conversation"] == first["conversation"]
        assert second["previous_response_id"] == first["id"]
        unknown = openai_error(await post(helper, previous_response_id="resp_x"), 404)
        assert unknown["code"] == "previous_response_not_found"
        third = await created(helper, conversation=first["conversation"])
        assert third["conversation"] == first["conversation"]
        named = await created(helper, conversation="mine")
        assert named["conversation"] == {"id": "mine"}
        both = await post(helper, conversation="mine", previous_response_id=named["id"])
        assert openai_error(both, 400)["param"] == "previous_response_id"
        other = await post(helper, {"X-Session-ID": "x"}, previous_response_id=named["id"])
        refused = openai_error(other, 400)
        assert refused["param"] == "session_id"
        assert "session_id" not in refused["message"]  # which this request does not have


def sent(helper: Face) -> list[str]:
    """Give what the model was sent of the conversation, for its newest reply."""
    messages = helper.house.model.requests[-1]
    return [m.content.partition("\n")[0] for m in messages if m.role != "system"]


@pytest.mark.parametrize("when_busy", ["enqueue", "reject"])
async def test_a_second_continuation_is_a_fork_with_the_history_up_to_there(when_busy: str) -> None:
    async with face("{}", "Answer.") as helper:
        first = await created(helper, input="one")
        second = await created(helper, input="two", previous_response_id=first["id"])
        third = await created(helper, input="three", previous_response_id=second["id"])
        for given in ("fork", "fork again"):
            fork = await created(
                helper, input=given, previous_response_id=second["id"], when_busy=when_busy
            )
            assert fork["previous_response_id"] == second["id"]
            assert sent(helper) == ["one", "Answer.", "two", "Answer.", given]
            assert fork["conversation"] != third["conversation"] == first["conversation"]
        more = await created(helper, input="more", previous_response_id=fork["id"])
        assert more["conversation"] == fork["conversation"]
        assert sent(helper) == ["one", "Answer.", "two", "Answer.", given, "Answer.", "more"]
        old = await created(helper, input="old", previous_response_id=first["id"])
        assert sent(helper) == ["one", "Answer.", "old"]
        assert len({each["conversation"]["id"] for each in (first, fork, old)}) == 3


async def test_continuations_at_the_same_moment_do_not_see_each_other() -> None:
    async with face("{}", "Answer.") as helper:
        first = await created(helper, input="one")
        asked = (created(helper, input=x, previous_response_id=first["id"]) for x in ("a", "b"))
        found = await asyncio.gather(*asked)
        assert len({each["conversation"]["id"] for each in found}) == 2
        prompts = helper.house.model.requests[2:]
        assert not any({"a", "b"} <= {m.content.partition("\n")[0] for m in p} for p in prompts)


async def test_nobody_forks_from_a_response_that_is_not_finished() -> None:
    async with face(model=Speaker("Hi", ...)) as helper:
        first = await created(helper, background=True)
        await created(helper, background=True, previous_response_id=first["id"])
        refused = openai_error(await post(helper, previous_response_id=first["id"]), 400)
        assert (refused["code"], refused["param"]) == (
            "response_not_finished",
            "previous_response_id",
        )


# What a request may bring


async def asked(helper: Face, run_id: str) -> RunRequested:
    first = (await helper.house.events(run_id))[0]
    assert isinstance(first, RunRequested)
    return first


async def test_items_are_the_messages_that_a_chat_would_bring() -> None:
    image = {"type": "input_image", "image_url": "https://a.example/a.png", "detail": "low"}
    paper = {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"}
    items = [
        {"role": "developer", "content": "Short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "three"}, image, paper]},
    ]
    async with face(inputs=("image", "file")) as helper:
        body = await created(helper, input=items, instructions="Kind.")
        first = await asked(helper, body["id"])
        assert (first.message, first.system) == ("three", "Kind.\n\nShort.")
        roles = [message.role for message in first.earlier]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]
        assert [c.id for c in first.earlier[1].calls] == ["a", "b"]
        assert first.parts == (
            {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "low"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}},
        )


async def test_what_cannot_be_is_refused_by_its_name() -> None:
    async with face() as helper:
        for fields, param in (
            ({"input": None}, "input"),
            ({"input": [{"role": "system", "content": "x"}], "instructions": "y"}, "input"),
            ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
            (
                {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
                "input[0].call_id",
            ),
            ({"input": [ASKED, CALLED]}, "input[1]"),
            (
                {
                    "input": [
                        ASKED,
                        *({**CALLED, "call_id": call_id} for call_id in "ab"),
                        RETURNED,
                        {**CALLED, "call_id": "c"},
                        *({**RETURNED, "call_id": call_id} for call_id in "bc"),
                    ]
                },
                "input[1]",
            ),
            (
                {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
                "input[0].content[0]",
            ),
            ({"prompt": {"id": "p"}}, "prompt"),
            ({"metadata": {"x": 1}}, "metadata.x"),
            ({"previous_response_id": "run-x", "session_id": ""}, "previous_response_id"),
            (
                {**FORCED, "tools": [{**CITY, "parameters": {"type": "x"}}]},
                "tools[0].parameters.type",
            ),
        ):
            error = openai_error(await post(helper, **fields), 400)
            assert error["param"] == param, error
        assert not await helper.house.runs.entries()


async def test_parameters_reach_the_model_where_the_manifest_allows_and_the_rest_is_named() -> None:
    allowed = ("temperature", "top_p", "max_tokens", "reasoning_effort", "verbosity")
    given = {
        "temperature": 0.5,
        "top_p": 1,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "high"},
        "user": "u",
        "service_tier": "auto",
        "truncation": "disabled",
    }
    async with face(chat=ChatConfig(allow_parameters=allowed)) as helper:
        reply = await post(helper, **given)
        assert "X-Diptych-Warning" not in reply.headers
        body = reply.json()
        parameters = (await asked(helper, body["id"])).parameters
        assert parameters == dict(zip(allowed, (0.5, 1, 9, "low", "high"), strict=True))
        assert (body["temperature"], body["max_output_tokens"]) == (0.5, 9)
    async with face(chat=ChatConfig(caller_system="off")) as helper:
        given |= {"store": False, "include": ["reasoning.encrypted_content"], "instructions": "x"}
        warned = (await post(helper, **given)).headers["X-Diptych-Warning"]
        assert warned.removeprefix("ignored: ").split(", ") == [
            "instructions",
            "store",
            "temperature",
            "top_p",
            "max_output_tokens",
            "include",
            "text.verbosity",
            "reasoning.effort",
        ]


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        pytest.param(FORCED, '{"n": "Paris"}', id="one"),
        pytest.param(
            {"tools": [CITY, TOWN], "tool_choice": "required"},
            '{"form": "City", "value": {"n": "Paris"}}',
            id="one of two",
        ),
    ],
)
async def test_a_forced_tool_is_called_and_its_output_goes_on_from_there(
    fields: Any, answer: str
) -> None:
    async with face("{}", answer) as helper:
        whole = await created(helper, **fields)
        told = await streamed(helper, **fields)
        pieces = [
            f.json["delta"] for f in told if f.event == "response.function_call_arguments.delta"
        ]
        body = told[-1].json["response"]
        for made in (whole["output"], body["output"]):
            (item,) = made
            assert (item["type"], item["name"]) == ("function_call", "City")
            assert json.loads(item["arguments"]) == {"n": "Paris"}
        assert "".join(pieces) == body["output"][0]["arguments"]
        assert (await helper.http.get(f"{PATH}/{body['id']}")).json() == body
        assert checked(await replay(helper, body["id"])) == told
        call_id = body["output"][0]["call_id"]
        result = {"type": "function_call_output", "call_id": call_id, "output": "yes"}
        after = await created(helper, input=[result], previous_response_id=body["id"])
        assert after["status"] == "completed"
        first = await asked(helper, after["id"])
        assert "yes" in str((first.earlier, first.message))
        wrong = {**result, "call_id": "x"}
        refused = await post(helper, input=[wrong], previous_response_id=after["id"])
        assert error_of(refused, 400)["param"] == "input[0].call_id"


async def test_a_deleted_response_is_gone_and_so_is_what_it_said() -> None:
    async with face("{}", "Answer.") as helper:
        first = await created(helper, input="one")
        second = await created(helper, input="two", previous_response_id=first["id"])
        path = f"{PATH}/{first['id']}"
        gone = await helper.http.delete(path)
        assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
        for again in (await helper.http.get(path), await helper.http.delete(path)):
            openai_error(again, 404)
        await created(helper, input="three", previous_response_id=second["id"])
        assert sent(helper) == ["two", "Answer.", "three"]


async def test_a_response_that_goes_on_is_not_deleted() -> None:
    async with face(model=Speaker("Hi", ...)) as helper:
        body = await created(helper, background=True)
        refused = openai_error(await helper.http.delete(f"{PATH}/{body['id']}"), 409)
        assert refused["code"] == "session_busy"
        assert "cancel it" in refused["message"]
