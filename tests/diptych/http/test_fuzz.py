"""Random bodies at every route that takes one: an error in the right form, or an answer."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.face import NAME, error_of, face

ROUTES = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/runs",
    "/a2a",
    "/a2a/rest/message:send",
    "/a2a/rest/message:stream",
    "/mcp",
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
    *("initialize", "tools/list", "tools/call", "notifications/cancelled"),
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


@settings(max_examples=20)
@given(bodies | values)
def test_random_json_is_answered_or_refused(body: Any) -> None:
    asyncio.run(post_everywhere(json.dumps(body).encode()))


@settings(max_examples=5)
@given(st.binary(max_size=64))
def test_random_bytes_are_refused(body: bytes) -> None:
    asyncio.run(post_everywhere(body))


async def post_everywhere(content: bytes) -> None:
    async with face() as helper:
        for route, version in [*((route, "1.0") for route in ROUTES), *OLDER_ROUTES]:
            headers = {"Content-Type": "application/json", "A2A-Version": version}
            response = await helper.http.post(route, content=content, headers=headers)
            assert response.status_code < 500, response.text
            if response.status_code >= 400 and route == "/mcp":
                assert response.json()["error"]["message"]
            elif response.status_code >= 400:
                error_of(response, response.status_code)
            elif response.content and response.headers["content-type"] == "application/json":
                response.json()
