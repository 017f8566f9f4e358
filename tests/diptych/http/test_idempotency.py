"""`Idempotency-Key`: a request that is sent again is the run that it began the first time."""

import json

import httpx
from support.face import HI, Face, face, openai_error
from support.stack import call

CHAT, RUNS = "/v1/chat/completions", "/v1/runs"
KEY = {"Idempotency-Key": "k-1"}
INPUT = {"input": "hi"}


async def echo(text: str = "") -> str:
    return text


async def runs_of(helper: Face) -> int:
    return len(await helper.house.runs.entries())


async def test_a_chat_that_is_sent_again_gets_the_same_bytes_and_calls_no_tool_again() -> None:
    replies = (call("echo", text="hello"), "{}", "It said hello")
    async with face(*replies, tools={"echo": echo}) as helper:
        first, again = [await helper.http.post(CHAT, json=HI, headers=KEY) for _ in range(2)]
        assert first.content == again.content
        for name in ("X-Run-ID", "X-Session-ID"):
            assert first.headers[name] == again.headers[name]
        assert len(helper.house.tools.called) == 1


async def test_another_request_under_the_same_key_is_refused() -> None:
    async with face() as helper:
        await helper.http.post(RUNS, json=HI, headers=KEY)
        for path, body, headers in (
            (RUNS, INPUT, {}),
            (RUNS, HI, {"X-Session-ID": "s"}),
            (CHAT, HI, {}),
        ):
            response = await helper.http.post(path, json=body, headers={**KEY, **headers})
            error = openai_error(response, 422)
            assert error["code"] == "idempotency_mismatch"
            assert "new key" in error["message"]
        assert await runs_of(helper) == 1


async def test_a_body_that_is_written_otherwise_is_the_same_body() -> None:
    async with face() as helper:
        headers = {**KEY, "Content-Type": "application/json"}
        for content in (
            b'{"input": "h\\u0069", "session_id": "s"}',
            b'{ "session_id":"s",\n"input":"hi" }',
        ):
            response = await helper.http.post(RUNS, content=content, headers=headers)
            assert response.status_code == 202, response.text
        assert await runs_of(helper) == 1


async def test_a_key_that_is_none_is_refused() -> None:
    async with face() as helper:
        for keys in ([b"x" * 256], ["schlüssel".encode()], [b"a", b"a"]):
            for path, body in ((CHAT, HI), (RUNS, INPUT)):
                headers = httpx.Headers([(b"Idempotency-Key", key) for key in keys])
                response = await helper.http.post(path, json=body, headers=headers)
                assert openai_error(response, 400)["param"] == "Idempotency-Key"
            assert await runs_of(helper) == 0


async def test_a_body_too_deep_to_be_compared_is_refused_with_a_key_only() -> None:
    content = json.dumps(HI)[:-1] + ', "metadata": ' + "[" * 300 + "]" * 300 + "}"
    json_type = {"Content-Type": "application/json"}
    async with face() as helper:
        refused = await helper.http.post(CHAT, content=content, headers={**KEY, **json_type})
        assert openai_error(refused, 400)["code"] == "invalid_json"
        taken = await helper.http.post(CHAT, content=content, headers=json_type)
        assert taken.status_code == 200
