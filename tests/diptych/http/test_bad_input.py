"""What callers send that is wrong: the exact status and form, and never a run."""

import json
from collections.abc import AsyncIterator
from typing import Any

from support.face import HI, error_of, face, openai_error

CHAT, RUNS, A2A = "/v1/chat/completions", "/v1/runs", "/a2a"
REST, OLDER_REST = "/a2a/rest/message:send", "/a2a/rest/v1/message:send"
JSON = {"Content-Type": "application/json"}
MEBIBYTE = 2**20


def user(content: Any, **rest: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **rest}


def said(*roles: str) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": "hi"} for role in roles]}


CONVERSATIONS = [
    ({"messages": []}, "messages"),
    (said("king"), "messages[0].role"),
    (said("system"), "messages"),
    (user(" \n\t"), "messages[0].content"),
    (user([{"type": "text"}]), "messages[0].content[0].text"),
    (said(*["user"] * 10_000), "messages"),
    (user("hi", session_id="a/b"), "session_id"),
]


async def test_a_conversation_of_the_wrong_form_is_refused() -> None:
    async with face() as helper:
        for body, param in CONVERSATIONS:
            for path in (CHAT, RUNS):
                response = await helper.http.post(path, json=body)
                assert openai_error(response, 400)["param"] == param
        assert await helper.house.runs.entries() == []


async def test_a_field_that_a_chat_cannot_have_is_refused() -> None:
    async with face() as helper:
        for fields, status, code, param in (
            ({"model": "gpt-5"}, 404, "model_not_found", "model"),
            ({"stream": "yes"}, 400, "invalid_type", "stream"),
            ({"n": 2}, 400, "invalid_value", "n"),
            ({"on_disconnect": "explode"}, 400, "invalid_value", "on_disconnect"),
            *(
                ({name: value}, 400, "unsupported_parameter", name)
                for name, value in {
                    "tools": [{"type": "function"}],
                    "functions": [{"name": "f"}],
                    "output_schema": {"type": "object"},
                    "budget": {"tokens": 1},
                    "audio": {"voice": "x"},
                }.items()
            ),
        ):
            response = await helper.http.post(CHAT, json={**HI, **fields})
            error = openai_error(response, status)
            assert (error["code"], error["param"]) == (code, param)
        assert await helper.house.runs.entries() == []


async def test_what_is_wrong_is_said_in_our_own_words() -> None:
    async with face() as helper:
        response = await helper.http.get(f"{RUNS}?limit=many")
        assert openai_error(response, 400)["message"] == "limit must be a valid integer"
        for body, message in (
            ({"messages": []}, "messages is empty"),
            ({"input": 5}, "input must be a valid string"),
            ({"input": "hi", "max_steps": 0}, "max_steps must be greater than or equal to 1"),
        ):
            response = await helper.http.post(RUNS, json=body)
            assert openai_error(response, 400)["message"] == message


async def test_a_run_of_the_wrong_form_is_refused() -> None:
    async with face() as helper:
        for body, code in (
            ({}, "invalid_request"),
            ({"input": "hi", **HI}, "invalid_request"),
            ({"input": "hi", "colour": 1}, "unknown_parameter"),
            ({"input": "hi", "budget": {"tokens": 0}}, "invalid_value"),
        ):
            response = await helper.http.post(RUNS, json=body)
            assert openai_error(response, 400)["code"] == code
        assert await helper.house.runs.entries() == []


RAW = [
    b"",
    b"[]",
    b'{"messages": NaN}',
    b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    json.dumps(HI).encode("utf-16"),
]


async def test_a_body_that_is_no_json_object_is_refused() -> None:
    async with face() as helper:
        for body in RAW:
            for path in (CHAT, RUNS):
                response = await helper.http.post(path, content=body, headers=JSON)
                assert openai_error(response, 400)["code"] == "invalid_json"
            headers = {**JSON, "A2A-Version": "1.0"}
            response = await helper.http.post(A2A, content=body, headers=headers)
            assert response.status_code == 200, response.text
            assert response.json()["error"]["code"] in (-32700, -32600)
            for path, as_sent in ((REST, headers), (OLDER_REST, JSON)):
                error_of(await helper.http.post(path, content=body, headers=as_sent), 400)
        assert await helper.house.runs.entries() == []


MESSAGE = '{"role": "user", "content": "hi"}'
TWICE = [
    (CHAT, f'{{"messages": [{MESSAGE[:-1]}, "content" : "no"}}]}}', "content"),
    (RUNS, '{"input": "hi", "input": "no"}', "input"),
    (RUNS, r'{"input": "\u003a", "input": "no"}', "input"),
]


async def test_a_key_that_stands_twice_is_refused() -> None:
    """A proxy that checks the first must not have checked another one than is used."""
    async with face() as helper:
        for path, body, key in TWICE:
            error = openai_error(await helper.http.post(path, content=body, headers=JSON), 400)
            assert error["code"] == "invalid_json"
            assert f'the key "{key}" appears twice in one object' in error["message"]
        assert await helper.house.runs.entries() == []


async def test_so_is_a_key_that_stands_twice_in_a2a() -> None:
    problem, fields = 'the key "id" appears twice in one object', '"id": "a", "id": "b"'
    body = f'{{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {{{fields}}}}}'
    newer = {**JSON, "A2A-Version": "1.0"}
    async with face() as helper:
        for as_sent in (newer, JSON):
            response = await helper.http.post(A2A, content=body, headers=as_sent)
            assert response.status_code == 200
            assert problem in response.json()["error"]["message"]
        for path, as_sent in ((REST, newer), (OLDER_REST, JSON)):
            response = await helper.http.post(path, content=f"{{{fields}}}", headers=as_sent)
            assert problem in error_of(response, 400)["message"]


CODINGS = [({"Content-Encoding": "gzip"}, 415), ({"Transfer-Encoding": "gzip, chunked"}, 501)]


async def test_a_body_that_says_it_is_coded_is_refused() -> None:
    """A proxy that decodes it would check another body than is used."""
    async with face() as helper:
        for headers, status in CODINGS:
            twice = [*headers.items(), *((name, "identity") for name in headers)]
            for path in (CHAT, RUNS, A2A, REST):
                for given in (headers, twice):
                    response = await helper.http.post(path, json=HI, headers=given)
                    error_of(response, status)
        assert await helper.house.runs.entries() == []
        ok = await helper.http.post(CHAT, json=HI, headers={"Content-Encoding": "identity"})
        assert ok.status_code == 200


async def in_pieces(size: int) -> AsyncIterator[bytes]:
    yield b'{"messages": [{"role": "user", "content": "'
    for _ in range(size // 2**16):
        yield b"x" * 2**16
    yield b'"}]}'


async def test_a_body_over_1_mib_is_refused_whether_its_length_is_known_or_not() -> None:
    async with face() as helper:
        for path in (CHAT, RUNS, A2A, REST, OLDER_REST):
            for content in (b" " * (MEBIBYTE + 1), in_pieces(2 * MEBIBYTE)):
                response = await helper.http.post(path, content=content, headers=JSON)
                assert "1 MiB" in str(error_of(response, 413))
        assert await helper.house.runs.entries() == []


async def test_a_body_that_does_not_say_it_is_json_is_refused() -> None:
    async with face() as helper:
        for media_type in ("text/plain", "application/jsonp", ""):
            content = json.dumps(HI)
            headers = {"Content-Type": media_type}
            for path in (CHAT, RUNS, A2A, REST, OLDER_REST):
                response = await helper.http.post(path, content=content, headers=headers)
                error_of(response, 415)
        assert await helper.house.runs.entries() == []


async def test_a_body_that_says_it_is_json_in_another_way_is_read() -> None:
    async with face() as helper:
        for media_type in ("application/json; charset=utf-8", "Application/JSON"):
            headers = {"Content-Type": media_type}
            response = await helper.http.post(CHAT, content=json.dumps(HI), headers=headers)
            assert response.status_code == 200


async def test_a_session_header_of_the_wrong_form_is_refused() -> None:
    async with face() as helper:
        for header, field in (("a b", None), ("one", "two")):
            body = HI if field is None else {**HI, "session_id": field}
            for path in (CHAT, RUNS):
                response = await helper.http.post(path, json=body, headers={"X-Session-ID": header})
                assert openai_error(response, 400)["param"] == "session_id"


async def test_two_session_headers_are_refused_whatever_they_say() -> None:
    async with face() as helper:
        for second in ("s", "other"):
            headers = [("X-Session-ID", "s"), ("x-session-id", second)]
            for path in (CHAT, RUNS):
                response = await helper.http.post(path, json=HI, headers=headers)
                assert openai_error(response, 400)["param"] == "X-Session-ID"
        assert await helper.house.runs.entries() == []


async def test_a_position_that_is_no_number_is_refused() -> None:
    async with face() as helper:
        for position in ("-1", "9" * 30, "\u0663"):
            run_id = (await helper.http.post(RUNS, json={"input": "hi"})).json()["id"]
            path = f"/v1/runs/{run_id}/events"
            headers = [(b"Last-Event-ID", position.encode())]
            by_header = await helper.http.get(path, headers=headers)
            by_query = await helper.http.get(path, params={"starting_after": position})
            for response in (by_header, by_query):
                assert openai_error(response, 400)["param"] == "starting_after"


METHODS = [
    (RUNS, "GET, POST"),
    ("/health", "GET, HEAD"),
    (f"{RUNS}/x/queue", "DELETE"),
    (A2A, "POST"),
    ("/a2a/rest/tasks", "GET, HEAD"),
    ("/.well-known/agent-card.json", "GET, HEAD"),
    ("/v1/responses/x", "DELETE, GET"),
]


async def test_what_is_not_possible_names_all_that_is() -> None:
    async with face() as helper:
        for method in ("PUT", "OPTIONS"):
            for path, methods in METHODS:
                response = await helper.http.request(method, path, json={})
                assert response.status_code == 405
                assert ", ".join(sorted(response.headers["Allow"].split(", "))) == methods


async def test_a_path_that_is_not_there_is_said_before_the_kind_of_the_body() -> None:
    async with face() as helper:
        for headers in ({}, {"Content-Type": "text/plain"}):
            for path, status in (
                ("/v1/chat/completion", 404),
                ("/nothing", 404),
                ("/a2a/rest/nothing", 404),
                ("/health", 405),
                ("/.well-known/agent-card.json", 405),
                (CHAT, 415),
                (f"{RUNS}/x/cancel", 415),
                (A2A, 415),
                (REST, 415),
            ):
                response = await helper.http.post(path, content=b"hi", headers=headers)
                assert response.status_code == status


async def test_a_path_with_a_slash_too_many_leads_nowhere() -> None:
    """A redirect would name the host that the caller named, and http, whatever is before us."""
    async with face() as helper:
        for path in (CHAT, RUNS, "/health", REST, "/page/page.js"):
            for response in (
                await helper.http.get(f"{path}/"),
                await helper.http.post(f"{path}/", json=HI),
            ):
                error_of(response, 404)
