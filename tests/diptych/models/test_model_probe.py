"""What the probe finds out about endpoints, and what it costs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from support.upstream_habits import error, refusal, said, whole
from support.upstream_server import Answer, UpstreamServer, upstream_server

from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.models.connection import open_http_session
from diptych.models.probe import EndpointFindings, probe_endpoint

CANARY = "canary-0123456789"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
PING = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
Body = Mapping[str, Any]


def good(body: Body) -> Answer:
    """Answer as a server does that takes everything, and whose model calls."""
    if "tools" in body:
        return whole({"content": None, "tool_calls": [PING]}, "tool_calls", usage=USAGE)
    if "response_format" not in body:
        return said("ok")
    return whole({"content": '{"ok": true}'}, usage=USAGE)


def page(value: Any) -> Answer:
    return Answer((orjson.dumps(value),))


def refusing(is_refused: Callable[[Body], bool], answer: Answer) -> Callable[[Body], Answer]:
    return lambda body: answer if is_refused(body) else good(body)


async def probed(there: UpstreamServer, **settings: Any) -> EndpointFindings:
    config = ModelConfig("m", there.url, timeouts=TimeoutConfig(first_byte=0.5, total=1))
    async with open_http_session() as session:
        return await probe_endpoint(session, replace(config, **settings))


async def test_an_endpoint_that_takes_everything_is_asked_four_times() -> None:
    async with upstream_server(good) as there:
        there.pages["/v1/models"] = page({"data": [{"id": "m", "max_model_len": 4096}]})
        found = await probed(there)
        assert [request.get("max_tokens") for request in there.requests] == [8, 48, 48]
        assert [set(request) & {"tools", "response_format"} for request in there.requests] == [
            set(),
            {"tools"},
            {"response_format"},
        ]
        assert there.paths[-1] == "/v1/models"
    assert found.failure is None
    assert found.tools is not None
    assert found.schema is not None
    assert (found.tools.is_taken, found.tools.is_used) == (True, True)
    assert (found.schema.is_taken, found.schema.is_used) == (True, True)
    assert (found.schema_kind, found.context, found.is_listed) == ("json_schema", 4096, True)
    assert (found.requests, found.tokens, found.refused) == (4, 24, ())


@pytest.mark.parametrize(
    ("owner", "pages", "context"),
    [
        (
            "library",
            {"/api/ps": {"models": [{"name": "m", "context_length": 4096}]}},
            4096,
        ),
        ("openai", {"/api/ps": {}}, None),
    ],
    ids=["Ollama", "another"],
)
async def test_the_context_is_asked_for_where_the_server_says_it(
    owner: str, pages: dict[str, Any], context: int | None
) -> None:
    async with upstream_server(good) as there:
        there.pages |= {path: page(value) for path, value in pages.items()}
        there.pages["/v1/models"] = page({"data": [{"id": "m", "owned_by": owner}]})
        found = await probed(there)
    assert found.context == context


async def test_tools_that_break_the_server_are_a_failure_of_tools_alone() -> None:
    broken = refusal(error("does not match the expected peg-native format"), 500)
    async with upstream_server(refusing(lambda body: "tools" in body, broken)) as there:
        found = await probed(there)
    assert found.failure is None
    assert found.tools is not None
    assert found.tools.failure is not None
    assert (found.tools.failure.code, found.tools.failure.status) == ("malformed_call", 500)


async def test_a_model_that_talks_instead_takes_tools_and_does_not_use_them() -> None:
    talk = whole({"content": "Sure, I will ping!"}, usage=USAGE)
    async with upstream_server(
        refusing(lambda body: "max_tokens" in body and body["max_tokens"] > 8, talk)
    ) as there:
        found = await probed(there)
    assert found.tools is not None
    assert found.schema is not None
    assert (found.tools.is_taken, found.tools.is_used) == (True, False)
    assert (found.schema.is_taken, found.schema.is_used) == (True, False)


async def test_a_reply_that_reasoning_has_used_up_is_one() -> None:
    spent = refusal(error("Could not finish the message because max_tokens or model output limit "
                          "was reached."))  # fmt: skip
    async with upstream_server(refusing(lambda body: True, spent)) as there:
        found = await probed(there)
    assert found.failure is None


@pytest.mark.parametrize(
    ("answer", "code", "requests"),
    [
        pytest.param(refusal(error(f"bad key {CANARY}"), 401), "model_unauthorized", 1, id="key"),
        pytest.param(refusal(error("The model `m` does not exist"), 404), "model_refused", 2,
                     id="no such model"),
        pytest.param(Answer((), end="hang"), "model_timeout", 1, id="silent"),
        ],
)  # fmt: skip
async def test_a_first_request_that_fails_ends_the_asking(
    answer: Answer, code: str, requests: int
) -> None:
    async with upstream_server(lambda _: answer) as there:
        there.pages["/v1/models"] = page({"data": [{"id": "mm"}]})
        found = await probed(there, api_key=lambda: CANARY)
        assert len(there.paths) == found.requests == requests
    assert found.failure is not None
    assert found.failure.code == code
    assert (found.seconds, found.tools, found.schema) == (None, None, None)
    assert found.models == (("mm",) if requests == 2 else None)
    assert CANARY not in str(found)


async def test_a_bare_host_is_listed_where_it_was_found() -> None:
    def without_v1(body: Body) -> Answer:
        path = there.paths[-1]
        return good(body) if path == "/chat/completions" else Answer((b"{}",), 404)

    async with upstream_server(without_v1) as there:
        there.url = there.url.removesuffix("/v1")
        there.pages["/models"] = page({"data": [{"id": "m"}]})
        found = await probed(there)
    assert (found.is_listed, found.failure) == (True, None)
