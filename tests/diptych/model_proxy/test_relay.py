"""What a ModelAPI's proxy passes on, to whom, and what it answers itself."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from support.model_proxies import (
    CHAT,
    SECRET,
    Asked,
    Files,
    endpoint,
    proxy,
    replying,
    token,
    until_true,
    write,
)
from support.redis_server import free_port
from support.stack import until

from diptych.core.errors import ConfigError
from diptych.model_proxy.config import config_file

QUESTION = b' {"messages" : [{"role":"user","content":"\\u00e4 \xc3\xa4"}],\n "model": "small"}\n'
STREAM = b': hi\r\n\r\ndata: {"choices":[{"delta":{"content":"\xf0\x9f\x98\x80"}}]}\n\ndata: [DONE]'
SSE = "Content-Type: text/event-stream\r\n"
WHOLE = json.dumps({"choices": []}).encode()


@pytest.fixture(autouse=True)
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diptych.model_proxy.upstream.PERIOD_SECONDS", 0.05)


@pytest.mark.parametrize(
    ("reply", "headers"),
    [
        pytest.param([WHOLE], f"Content-Length: {len(WHOLE)}\r\n", id="whole"),
        pytest.param([STREAM[n : n + 1] for n in range(len(STREAM))], SSE, id="stream in bytes"),
        pytest.param([b""], "Content-Length: 0\r\n", id="empty"),
    ],
)
async def test_request_and_reply_pass_byte_for_byte(
    tmp_path: Path, reply: list[bytes], headers: str
) -> None:
    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, *reply, headers=f"{headers}X-Request-Id: r-1\r\nKeep-Alive: 9\r\n")

    async with endpoint(answer) as behind:
        files = Files(tmp_path, behind.url, headers=[{"name": "X-Team", "value": "platform"}])
        async with proxy(files) as served:
            sent = {"Accept-Encoding": "br", "Traceparent": "t", "X-Api-Key": "own"}
            sent |= {"X-Team": "mine", "X-Diptych-Agent": "a/b"}
            async with served.post(QUESTION, **sent) as got:
                assert await got.read() == b"".join(reply)
                assert got.status == 200
                assert got.headers["X-Request-Id"] == "r-1"
                assert "Keep-Alive" not in got.headers
        (asked,) = behind.chats
    assert asked.body == QUESTION
    assert asked.line == f"POST {CHAT} HTTP/1.1"
    assert asked.header("authorization") == f"Bearer {SECRET}"
    assert (asked.header("accept-encoding"), asked.header("traceparent")) == ("identity", "t")
    assert [value for name, value in asked.headers if name.lower() == "x-team"] == ["platform"]
    for name in ("x-api-key", "x-diptych-agent"):
        assert asked.header(name) is None


async def test_each_piece_of_a_stream_passes_before_the_next_is_written(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, b"data: 1\n\n", headers=SSE)
        await seen.wait()
        writer.write(b"data: 2\n\n")

    async with endpoint(answer) as behind, proxy(Files(tmp_path, behind.url)) as served:
        async with served.post(QUESTION) as reply:
            assert await reply.content.readany() == b"data: 1\n\n"
            seen.set()
            assert await reply.content.read() == b"data: 2\n\n"


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_caller_who_hangs_up_cancels_the_request_at_the_endpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_begun: bool
) -> None:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if has_begun:
            await write(writer, b"data: 1\n\n", headers=SSE)
        await asked.hung_up.wait()

    caplog.set_level(logging.INFO, "diptych.audit")
    async with endpoint(answer) as behind, proxy(Files(tmp_path, behind.url)) as served:
        asking = asyncio.create_task(_first_piece(served.post(QUESTION)))
        await until(lambda: behind.chats)
        if has_begun:
            await asking
        else:
            asking.cancel()
        async with asyncio.timeout(5):
            await behind.chats[0].hung_up.wait()
        await until(lambda: '"outcome": "cancelled"' in caplog.text)


async def _first_piece(request: Any) -> None:
    async with request as reply:
        await reply.content.readany()


async def test_an_endpoint_that_is_away_or_late_is_an_error_of_openai_s_form(
    tmp_path: Path,
) -> None:
    async def never(asked: Asked, _: asyncio.StreamWriter) -> None:
        await asked.hung_up.wait()

    async with endpoint(never) as behind:
        files = Files(tmp_path, behind.url, timeouts={"firstByte": "50ms"})
        async with proxy(files) as served:
            status, body = await served.ask()
            assert (status, body["error"]["code"]) == (504, "model_timeout")
            files.write(timeouts={"firstByte": "50s", "total": "50ms"})
            assert (await served.ask())[0] == 504
            files.write(timeouts={}, endpoint=f"http://127.0.0.1:{free_port()}")
            status, body = await served.ask()
            assert (status, body["error"]["code"]) == (502, "model_unreachable")
            files.key.unlink()
            status, body = await served.ask()
            assert (status, body["error"]["code"]) == (502, "model_unauthorized")


@pytest.mark.parametrize("ends", [False, True])
async def test_a_stream_that_stalls_or_breaks_off_is_cut(tmp_path: Path, *, ends: bool) -> None:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, b"data: 1\n\n", headers=f"{SSE}Content-Length: 1000\r\n")
        if not ends:
            await asked.hung_up.wait()

    async with endpoint(answer) as behind:
        files = Files(tmp_path, behind.url, timeouts={"idle": "100ms"})
        async with proxy(files) as served, served.post(QUESTION) as reply:
            with pytest.raises(aiohttp.ClientError):
                await reply.read()


# Who may ask


WRONG_AUDIENCE = token(aud=["diptych.dev/platform/house"])  # the Agent of that name
FORGED = token(key=ec.generate_private_key(ec.SECP256R1()))


def audited(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]


async def test_only_allowed_agents_prove_themselves_by_a_token_for_this_modelapi(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    async with endpoint() as behind, proxy(Files(tmp_path, behind.url)) as served:
        for credential, status in (
            ("", 401),
            (token("team/other"), 403),
            (token("diptych/operator"), 403),
            (token("diptych/auditor"), 403),
            (WRONG_AUDIENCE, 401),
            (token(exp=1), 401),
            (FORGED, 401),
            (SECRET, 401),
            (token(), 200),
        ):
            caplog.clear()
            header = {"Authorization": f"Bearer {credential}" if credential else ""}
            async with served.post(QUESTION, **header) as reply:
                body = await reply.json(content_type=None)
                assert reply.status == status, body
                assert "error" in body or status == 200
                assert ("WWW-Authenticate" in reply.headers) == (status == 401)
            assert len(behind.chats) == (status == 200)
            await until(lambda: audited(caplog))
            (line,) = audited(caplog)
            assert line["outcome"] == ("ok" if status == 200 else "refused")
            assert line["subject"] == ("agent:team/clerk" if status == 200 else line["subject"])
            assert not credential or credential.split(".")[-1] not in caplog.text


async def test_a_changed_configuration_holds_for_the_next_request(tmp_path: Path) -> None:
    may_end = asyncio.Event()

    async def slow(_: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, b'{"old":', headers="Content-Type: application/json\r\n")
        await may_end.wait()
        writer.write(b"1}")

    async with endpoint(slow) as first, endpoint() as second:
        files = Files(tmp_path, first.url)
        async with proxy(files) as served:
            under_way = asyncio.create_task(served.ask())
            await until(lambda: first.chats)
            files.write(endpoint=second.url)
            assert (await served.ask())[0] == 200
            files.write_text("{")
            assert (await served.ask())[0] == 200  # the former configuration
            _, ready = await served.get("/ready")
            assert "the former one stays in force" in ready["notes"][0]
            files.agents = []
            files.write()
            assert (await served.ask())[0] == 403
            may_end.set()
            assert await under_way == (200, {"old": 1})
        assert len(second.chats) == 2


# Which models


async def test_a_request_names_a_model_that_the_list_allows(tmp_path: Path) -> None:
    async with endpoint() as behind:
        files = Files(tmp_path, behind.url, models=["small", "large*"], default="small")
        async with proxy(files) as served:
            for body, status, said in (
                (b'{"model":"small"}', 200, ""),
                (b'{"model":"large-2"}', 200, ""),
                (b'{"model":"secret-one"}', 404, "small, large*"),
                (b'{"model":"small","model":"secret-one"}', 400, "twice"),
                (b'{"model":"small","Model":"secret-one"}', 400, "lower case"),
                ('{"model":"small","model\u017f":["secret-one"]}'.encode(), 400, "lower case"),
                (b'{"model":"small","models":["large","secret-one"]}', 404, "secret-one"),
                (b'{"model":null}', 400, "model is required"),
                (b'{"messages":[]}', 400, "model is required"),
                (b'{"model":["small"]}', 400, "model is required"),
                (b"[]", 400, "object"),
                (b"{", 400, "JSON"),
                (b"\xff", 400, "JSON"),
                (b'{"a":' + b"[" * 100_000, 400, "JSON"),
            ):
                behind.asked.clear()
                async with served.post(body) as reply:
                    content = await reply.json(content_type=None)
                    assert reply.status == status
                    assert said in content.get("error", {}).get("message", "")
                assert [asked.body for asked in behind.chats] == ([body] if status == 200 else [])


async def test_the_list_of_models_has_those_that_agents_may_use(tmp_path: Path) -> None:
    async with endpoint() as behind:
        files = Files(tmp_path, behind.url, models=["s*l", "large"])
        async with proxy(files) as served:
            status, listed = await served.get("/v1/models")
            assert (status, [each["id"] for each in listed["data"]]) == (200, ["small", "large"])
            status, _ = await served.get("/v1/models", "team/other")
            assert status == 403


# The key


async def test_a_rotated_key_holds_for_the_next_request(tmp_path: Path) -> None:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        is_right = asked.header("authorization") == "Bearer the-newer-key"
        await write(writer, b"{}", status="200 OK" if is_right else "401 Unauthorized")

    async with endpoint(answer) as behind:
        files = Files(tmp_path, behind.url)
        async with proxy(files) as served:

            async def says(code: str) -> bool:
                _, found = await served.get("/ready")
                return str(found["endpoint"]["reason"]).partition(":")[0] == code

            await until_true(lambda: says(""))
            assert (await served.ask())[0] == 401
            assert await says("key_refused")  # although the models are listed
            files.key.write_text("the-newer-key\n")
            assert (await served.ask())[0] == 200
            assert await says("")


async def test_an_error_passes_unchanged_but_for_the_key_that_it_quotes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = b'{"error": {"message": "\xff no such thing"}}'
    quoting = json.dumps({"error": {"message": f"not {SECRET}, I say"}}).encode()
    for body, expected in ((odd, odd), (quoting, quoting.replace(SECRET.encode(), b"[redacted]"))):
        length = f"Content-Length: {len(body)}\r\n"
        answer = replying(body, status="400 Bad Request", headers=length)
        async with endpoint(answer) as behind, proxy(Files(tmp_path, behind.url)) as served:
            async with served.post(QUESTION) as reply:
                assert (reply.status, await reply.read()) == (400, expected)
    assert SECRET not in caplog.text


# Hostile input, and how it is


async def test_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with endpoint() as behind, proxy(Files(tmp_path, behind.url), 2**22) as served:
        async with served.post(QUESTION, **{"X-Long": "x" * 70_000}) as reply:
            assert reply.status == 431
        async with served.post(b'{"model":"small","a":"' + b"x" * 2**22 + b'"}') as reply:
            assert (reply.status, (await reply.json(content_type=None))["error"]["code"]) == (
                503,
                "overloaded",
            )
        async with served.post(b"{}", **{"Content-Type": "text/plain"}) as reply:
            assert reply.status == 415
        for method, path, status in (("GET", CHAT, 405), ("POST", "/v1/files", 404)):
            headers = {"Authorization": f"Bearer {token()}"}
            async with served.http.request(method, served.url + path, headers=headers) as reply:
                assert (reply.status, "error" in await reply.json(content_type=None)) == (
                    status,
                    True,
                )
        assert not behind.chats
        assert (await served.ask())[0] == 200


async def test_ready_tells_the_operator_how_the_endpoint_is(tmp_path: Path) -> None:
    async with endpoint() as behind:
        files = Files(tmp_path, behind.url, models=["small"])
        async with proxy(files) as served:

            async def is_now(code: str, *models: str) -> bool:
                _, found = await served.get("/ready", "diptych/operator")
                reason = str(found["endpoint"]["reason"])
                return reason.partition(":")[0] == code and found["models"] == list(models)

            await until_true(lambda: is_now("", "small"))
            status, found = await served.get("/ready", "diptych/operator")
            assert status == 200
            assert found == {
                "status": "ready",
                "modelapi": "platform/house",
                "endpoint": {"is_ok": True, "reason": ""},
                "models": ["small"],
                "notes": [],
            }
            assert await served.get("/ready", "") == (200, {"status": "ready"})
            files.key.unlink()
            files.write(models=["small", "large"])
            await until_true(lambda: is_now("key_missing"))
            files.key.write_text(SECRET)
            files.write(endpoint=f"http://127.0.0.1:{free_port()}/v1")
            await until_true(lambda: is_now("unreachable"))
            served.proxy.relay.is_closing = True
            assert (await served.get("/ready", ""))[0] == 503


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"colour": "red"}, "spec.colour"),
        ({"budget": {"perDay": {"tokens": 5}}}, "redis"),
    ],
)
def test_a_configuration_that_cannot_be_used_names_the_field(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    files = Files(tmp_path, "http://127.0.0.1:1")
    files.spec = {k: v for k, v in (files.spec | change).items() if v is not None}
    files.write()
    with pytest.raises(ConfigError, match=problem):
        config_file(tmp_path)
