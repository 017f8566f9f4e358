"""Random bodies at every route that takes one: an error in the right form, or an answer."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.face import NAME, error_of, face

pytestmark = pytest.mark.no_cover

ROUTES = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/runs",
    "/a2a",
    "/a2a/rest/message:send",
    "/a2a/rest/message:stream",
    "/v1/runs/run-1/cancel",
    "/memory/events",
]

OLDER_ROUTES = [
    (route, "0.3") for route in ("/a2a", "/a2a/rest/v1/message:send", "/a2a/rest/v1/message:stream")
]

texts = st.text(max_size=8) | st.sampled_from(["hi", "user", "text", NAME, "\ud800", "a/b"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | values,
            "content": st.just("hi")
            | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
            | values,
        },
    )
    | values,
    max_size=3,
)
part_fields = {"kind": st.sampled_from(["text", "data", "file"]), "text": texts, "data": values}
parts = st.lists(st.fixed_dictionaries({}, optional=part_fields) | values)
a2a_params = st.fixed_dictionaries(
    {},
    optional={
        "id": st.just("run-1") | values,
        "message": st.fixed_dictionaries(
            {},
            optional={
                "messageId": st.just("m") | values,
                "role": st.sampled_from(["ROLE_USER", "user"]) | values,
                "parts": parts,
                "content": parts,  # in A2A 0.3 over REST
                "contextId": texts,
                "taskId": texts,
                "metadata": values,
            },
        )
        | values,
        "configuration": values,
    },
)
METHODS = [
    *("SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask"),
    *("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe"),
]
bodies = st.fixed_dictionaries(
    {},
    optional={
        "messages": messages | values,
        "input": st.just("hi") | values,
        "model": st.just(NAME) | values,
        "stream": st.booleans() | values,
        "stream_options": st.fixed_dictionaries({}, optional={"include_usage": values}) | values,
        "session_id": texts | values,
        "on_disconnect": st.sampled_from(["continue", "cancel"]) | values,
        "n": st.just(1) | values,
        "tools": values,
        "jsonrpc": st.just("2.0") | values,
        "id": st.just(1) | values,
        "method": st.sampled_from(METHODS) | values,
        "params": a2a_params | values,
    },
)


choices = st.sampled_from(["required", "auto", {"type": "function", "function": {"name": "hi"}}])


@settings(max_examples=60, deadline=None)
@given(bodies | values)
def test_random_json_is_answered_or_refused(body: Any) -> None:
    asyncio.run(post_everywhere(json.dumps(body).encode()))


items = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "function_call", "function_call_output", "x"])
            | st.just("item_reference")
            | values,
            "id": st.sampled_from(["msg_run-x_0", "fc_run-x_in1", "rs_x"]) | values,
            "role": st.sampled_from(["user", "assistant", "system"]) | values,
            "content": st.just("hi")
            | st.lists(
                st.fixed_dictionaries(
                    {"type": st.sampled_from(["input_text", "input_image", "input_file"])},
                    optional={"text": texts, "image_url": values, "file_data": values},
                ),
                max_size=2,
            )
            | values,
            "call_id": st.just("c") | values,
            "name": texts,
            "arguments": texts,
            "output": values,
        },
    )
    | values,
    max_size=3,
)
response_tools = st.fixed_dictionaries({"type": st.just("function")}, optional={"name": texts})
responses = st.fixed_dictionaries(
    {"input": st.just("hi") | items | values},
    optional={
        "previous_response_id": texts | values,
        "conversation": texts | st.fixed_dictionaries({"id": texts}) | values,
        "instructions": values,
        "background": st.booleans() | values,
        "text": st.fixed_dictionaries(
            {}, optional={"format": st.fixed_dictionaries({"type": st.just("json_schema")})}
        )
        | values,
        "reasoning": values,
        "metadata": st.dictionaries(texts, texts, max_size=3) | values,
        "tools": st.lists(response_tools, max_size=2) | values,
        "tool_choice": choices | st.just({"type": "function", "name": "hi"}) | values,
        "max_output_tokens": values,
        "prompt": values,
        "stream": st.booleans() | values,
    },
)


@settings(max_examples=80, deadline=None)
@given(responses)
def test_random_requests_for_responses_are_answered_or_refused(body: dict[str, Any]) -> None:
    asyncio.run(ask_for_responses(body))


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=64))
def test_random_bytes_are_refused(body: bytes) -> None:
    asyncio.run(post_everywhere(body))


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["X-Session-ID", "Last-Event-ID", "traceparent", "A2A-Version", "A2A-Extensions"]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=12).map(
            lambda text: text.encode("latin-1")
        ),
    ),
    st.text(max_size=12),
)
def test_random_headers_and_queries_are_answered_or_refused(
    headers: dict[str, bytes], query: str
) -> None:
    asyncio.run(ask_everywhere(headers, query))


async def post_everywhere(content: bytes) -> None:
    async with face() as helper:
        for route, version in [*((route, "1.0") for route in ROUTES), *OLDER_ROUTES]:
            headers = {"Content-Type": "application/json", "A2A-Version": version}
            response = await helper.http.post(route, content=content, headers=headers)
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                error_of(response, response.status_code)
            elif response.headers["content-type"] == "application/json":
                response.json()


async def ask_for_responses(body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    async with face() as helper:
        reply = await helper.http.post("/v1/responses", content=json.dumps(body), headers=headers)
        if reply.status_code >= 400:
            error = error_of(reply, reply.status_code)
            is_known = "invalid_output" in str(error)  # of a tool that no reply here fits
            assert reply.status_code < 500 or is_known, error


async def ask_everywhere(headers: dict[str, bytes], query: str) -> None:
    given_headers: Any = list(headers.items())
    params = dict.fromkeys(("session_id", "limit", "stream", "starting_after"), query)
    async with face() as helper:
        run_id = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()["id"]
        for route in (
            "/v1/runs",
            f"/v1/runs/{run_id}",
            f"/v1/runs/{run_id}/events",
            f"/v1/responses/{run_id}",
            "/memory/events",
            "/memory/sessions",
            "/.well-known/agent-card.json",
        ):
            response = await helper.http.get(route, params=params, headers=given_headers)
            assert response.status_code < 500, response.text
            if response.status_code >= 400:
                error_of(response, response.status_code)
