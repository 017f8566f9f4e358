"""The OpenAPI document: complete, and true of what the agent really answers."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from support.face import HI, Face, Speaker, face
from support.stack import call, frames

from diptych.http import openapi

ROOT = Path(__file__).parents[3]
RUN = {"input": "hi"}


def document_of(helper: Face) -> dict[str, Any]:
    return helper.app.openapi()


def check(helper: Face, response: httpx.Response) -> httpx.Response:
    """Check that a response is one that the document describes: status, type, headers, body."""
    document = document_of(helper)
    request = response.request
    path = next(p for p in document["paths"] if _matches(p, request.url.path))
    operation = document["paths"][path][request.method.lower()]
    assert str(response.status_code) in operation["responses"], (path, response.text)
    described = operation["responses"][str(response.status_code)]
    if response.content:
        media_type = response.headers["content-type"].partition(";")[0]
        assert media_type in described["content"], (path, media_type)
        if "json" in media_type:
            validate(document, described["content"][media_type]["schema"], response.json())
    names = ("X-Run-ID", "X-Session-ID", "X-Diptych-Warning", "Retry-After", "x-should-retry")
    for name in names:
        assert name not in response.headers or name in described.get("headers", {}), (path, name)
    return response


def validate(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    whole = {**schema, "components": document["components"]}
    errors = list(Draft202012Validator(whole).iter_errors(value))
    assert not errors, (errors[0].message, list(errors[0].path), value)


def _matches(template: str, path: str) -> bool:
    return bool(re.fullmatch(re.sub(r"\{\w+\}", "[^/:]+", template), path))


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from walk(inner)


async def test_every_route_is_described_and_every_reference_leads_somewhere() -> None:
    async with face() as helper:
        document = document_of(helper)
        operations = {
            (method.upper(), path): operation
            for path, item in document["paths"].items()
            for method, operation in item.items()
        }
        routers = [r.original_router for r in helper.app.routes if hasattr(r, "original_router")]
        routes = [route for router in routers for route in router.routes]
        assert len(routes) > 20
        for route in routes:
            for method in route.methods if route.include_in_schema else ():
                operation = operations[method, route.path_format]
                assert operation["operationId"] == route.name
                assert operation["description"]
        ids = [operation["operationId"] for operation in operations.values()]
        assert len(ids) == len(set(ids)) == len(operations)
        for operation in operations.values():
            assert all(r["description"] for r in operation["responses"].values())
            queries = [p for p in operation.get("parameters", []) if p.get("in") == "query"]
            assert all(parameter["description"] for parameter in queries)
        for each in walk(document):
            if isinstance(ref := each.get("$ref"), str):
                target: Any = document
                for step in ref.removeprefix("#/").split("/"):
                    target = target[step]
        assert (await helper.http.get("/openapi.json")).json() == json.loads(json.dumps(document))


async def test_chats_are_what_the_document_says() -> None:
    forced = {
        "tools": [{"type": "function", "function": {"name": "City"}}],
        "tool_choice": "required",
        "seed": 1,
    }
    for body in (HI, {**HI, **forced}):
        async with face("{}", '<think>So.</think>{"a": 1}') as helper:
            document = document_of(helper)
            whole = check(helper, await helper.http.post("/v1/chat/completions", json=body))
            assert "reasoning_content" in whole.text
            assert ("tool_calls" in whole.text) == ("X-Diptych-Warning" in whole.headers)
            asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
            streamed = check(helper, await helper.http.post("/v1/chat/completions", json=asked))
            chunks = [frame for frame in frames(streamed.text) if frame.data != "[DONE]"]
            assert len(chunks) > 3
            for chunk in chunks:
                validate(document, {"$ref": "#/components/schemas/ChatCompletionChunk"}, chunk.json)
    async with face() as helper:
        check(helper, await helper.http.get("/v1/models"))
        check(helper, await helper.http.get("/v1/models/helper"))


async def test_responses_are_what_the_document_says() -> None:
    tool = {"type": "function", "name": "City"}
    bodies: list[dict[str, Any]] = [
        {"metadata": {"a": "b"}, "instructions": "Be kind.", "temperature": 1},
        {"background": True},
        {"stream": True},
        {"tools": [tool], "tool_choice": tool, "reasoning": {"effort": "low"}},
        {"max_steps": 1, "previous_response_id": "x"},
    ]
    async with face("{}", '<think>So.</think>{"a": 1}') as helper:
        for body in bodies:
            path = "/v1/responses"
            reply = check(helper, await helper.http.post(path, json={**RUN, **body}))
            if reply.status_code == 200:
                path = f"/v1/responses/{reply.headers['X-Run-ID']}"
                for query in ("", "?stream=true&starting_after=2", "/input_items"):
                    check(helper, await helper.http.get(path + query))
                check(helper, await helper.http.post(f"{path}/cancel"))
                check(helper, await helper.http.delete(path))


async def test_runs_are_what_the_document_says() -> None:
    model = Speaker("one ", ..., "two")
    async with face(model=model) as helper:
        started = check(helper, await helper.http.post("/v1/runs", json={**RUN, "session_id": "s"}))
        path = f"/v1/runs/{started.json()['id']}"
        await model.has_stopped.wait()
        assert "text" in check(helper, await helper.http.get(path)).json()
        for busy, body in (("/v1/runs", RUN), ("/v1/chat/completions", HI)):
            refused = {**body, "when_busy": "reject", "session_id": "s"}
            assert check(helper, await helper.http.post(busy, json=refused)).status_code == 409
        model.go.set()
        events = check(helper, await helper.http.get(f"{path}/events"))
        document = document_of(helper)
        for frame in frames(events.text):
            if frame.id:
                validate(document, {"$ref": "#/components/schemas/Event"}, frame.json)
        assert "answer" in check(helper, await helper.http.get(path)).json()
        check(helper, await helper.http.get(f"{path}/tree"))
        check(helper, await helper.http.post(f"{path}/cancel"))
        for query in ("", "?limit=1", "?status=failed", "?before=x", "?limit=0", "?status=x"):
            check(helper, await helper.http.get(f"/v1/runs{query}"))


async def test_runs_that_fail_are_what_the_document_says() -> None:
    async with face(call("add", a=1), call("add", a=1)) as helper:  # then the script is used up
        for path, body in (("/v1/chat/completions", HI), ("/v1/responses", RUN)):
            failed = check(helper, await helper.http.post(path, json=body))
            assert failed.status_code == 502
            run_id = failed.headers["X-Run-ID"]
            check(helper, await helper.http.get(f"/v1/responses/{run_id}"))
            assert "error" in check(helper, await helper.http.get(f"/v1/runs/{run_id}")).json()


async def test_the_rest_is_what_the_document_says() -> None:
    async with face() as helper:
        check(helper, await helper.http.post("/v1/chat/completions", json=HI))
        for path in ("/memory/events", "/memory/sessions", "/health", "/ready", "/metrics"):
            check(helper, await helper.http.get(path))
        card = check(helper, await helper.http.get("/.well-known/agent-card.json"))
        known = {"If-None-Match": card.headers["etag"]}
        check(helper, await helper.http.get("/.well-known/agent-card.json", headers=known))
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        newer = {"A2A-Version": "1.0"}
        check(helper, await helper.http.post("/a2a", json=body, headers=newer))
        sent = {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        for path, body in (("message:send", sent), ("message:stream", sent), ("message:send", {})):
            check(helper, await helper.http.post(f"/a2a/rest/{path}", json=body, headers=newer))
        tasks = check(helper, await helper.http.get("/a2a/rest/tasks", headers=newer)).json()
        for task_id in (tasks["tasks"][0]["id"], "never-was"):
            path = f"/a2a/rest/tasks/{task_id}"
            check(helper, await helper.http.get(path, headers=newer))
            check(helper, await helper.http.post(f"{path}:cancel", headers=newer))
            check(helper, await helper.http.get(f"{path}:subscribe", headers=newer))
        form = {"Content-Type": "text/plain"}
        check(helper, await helper.http.post("/v1/runs", content=b"hi", headers=form))
        session = (await helper.http.get("/memory/sessions")).json()["sessions"][0]["session_id"]
        check(helper, await helper.http.delete(f"/memory/sessions/{session}"))


def test_the_reference_is_what_the_generator_writes_each_time() -> None:
    generator = runpy.run_path(str(ROOT / "tools" / "reference" / "http_api.py"))
    openapi.document(generator["application"](), needs_credential=True)  # changes none made later
    assert generator["text"]() == generator["FILE"].read_text(encoding="utf-8"), "run `make format`"
