"""Hooks of a manifest, against real servers: signed, bounded, and whatever goes wrong is told."""

import asyncio
import base64
import hashlib
import hmac
import json
from contextlib import asynccontextmanager

import pytest
from support.stack import box, call, stage

from diptych.core.catalog import Catalog
from diptych.core.messages import ToolCall
from diptych.net.received import ANSWERS
from diptych.runs.definition import HookConfig
from diptych.runs.hooks import Hooks
from diptych.runs.http_hooks import HttpHooks

CALL = ToolCall("call_1_1", "pay", {"amount": 5})
KEY = "whsec_" + base64.b64encode(b"a key of some bytes").decode()


LARGE_TWICE = b'{"deny":"no","arguments":{"text":"' + b"x" * 100_000 + b'"},"deny":null}'


def http(body=b"{}", status="200 OK", headers=""):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@asynccontextmanager
async def serving(answer):
    """Serve `answer`: bytes, or what is given the request's head and body, and the writer."""
    requests = []

    async def serve(reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            names = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(names["content-length"]))
            requests.append((names, body))
            if callable(answer):
                await answer(writer)
            else:
                writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/hook", requests
    finally:
        server.close()


@asynccontextmanager
async def hooks_at(url, at="beforeCall", **about):
    http_hooks = HttpHooks("helper", [HookConfig(at, url, **about)])
    try:
        yield Hooks(http_hooks.hooks)
    finally:
        await http_hooks.aclose()


async def judged(url, **about):
    async with hooks_at(url, **about) as hooks:
        return await hooks.before_call({"run_id": "r"}, CALL, Catalog())


async def test_a_question_is_json_and_signed_so_that_its_receiver_can_tell_it_from_others():
    headers = {"X-Team": lambda: "blue"}
    async with serving(http(b'{"arguments": {"amount": 4}}')) as (url, requests):
        event = await judged(url, signing_key=lambda: KEY, headers=headers)
    assert event.call == ToolCall("call_1_1", "pay", {"amount": 4})
    ((names, body),) = requests
    question = json.loads(body)
    assert question["at"] == "beforeCall"
    assert question["agent"] == "helper"
    assert question["call"] == {"id": "call_1_1", "tool": "pay", "arguments": {"amount": 5}}
    signed = f"{names['webhook-id']}.{names['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"a key of some bytes", signed, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(digest).decode()}"
    assert names["webhook-signature"] == expected.lower()  # as `names` are
    assert names["x-team"] == "blue"


@pytest.mark.parametrize("answer", [http(), http(b"", "204 No Content"), http(b"")])
async def test_an_answer_that_says_nothing_lets_the_call_pass(answer):
    async with serving(answer) as (url, _):
        event = await judged(url)
    assert (event.call, event.denied) == (None, None)


async def hang(_):
    await asyncio.sleep(30)


async def drip(writer):
    """Answer a byte now and then, so that nothing is ever silent for long."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(300):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10485760\r\n\r\n")
    for _ in range(160):
        writer.write(b" " * 65_536)
        await writer.drain()


async def reset(writer):
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (hang, "did not answer within 0.5 s"),
        (drip, "did not answer within 0.5 s"),
        (flood, "returned too much: its answer has more than 1048576 bytes"),
        (http(b"[" + b"{}," * 340_000 + b"{}]"), "would take more than 33554432 bytes of memory"),
        (reset, "cannot be reached"),
        (b"garbage\r\n\r\n", "cannot be reached"),
        (http(b"<html>"), "not JSON"),
        (http(b"[" * 100_000), "not JSON"),
        (http(b'["a"]'), "not a JSON object"),
        (http(b'{"deny": "no", "deny": null}'), 'the key "deny" appears twice in one object'),
        (http(b'{"den\\u0079": "no", "deny": null}'), 'the key "deny" appears twice'),
        (http(b'{"arguments": {"amount": 1, "amount": 9}}'), 'the key "amount" appears twice'),
        (http(b'{"arguments": {"amount": 99999999999999999999}}'), "too large for 64 bits"),
        (http(LARGE_TWICE), 'the key "deny" appears twice'),
        (http(b'{"ok": true}'), "a field that beforeCall does not have"),
        (http(b"{}", "500 Internal Server Error"), "answered with status 500"),
        (
            http(b"{}", "302 Found", "Location: http://169.254.169.254/\r\n"),
            "answered with status 302",
        ),
        (http(b"{}", headers="Content-Encoding: gzip\r\n"), "compressed"),
    ],
)
async def test_whatever_goes_wrong_denies_and_says_why(answer, why):
    async with serving(answer) as (url, requests):
        event = await judged(url, timeout=0.5 if answer in (hang, drip) else 10.0)
    assert "the hook beforeCall at 127.0.0.1" in event.denied
    assert why in event.denied
    assert len(requests) == 1, "it is not asked again"


async def test_answers_of_hooks_are_counted_with_all_others_while_they_come():
    """A hook that never ends many answers at once would fill the memory with them."""
    most = 0

    async def never_end(writer):
        nonlocal most
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n[" + b"{}," * 300_000)
        await writer.drain()
        while writer.transport.get_write_buffer_size() or not writer.is_closing():
            most = max(most, ANSWERS.used)
            await asyncio.sleep(0.02)
            writer.write(b" ")
            await writer.drain()

    async with serving(never_end) as (url, _), hooks_at(url, timeout=2.0) as hooks:
        asked = (hooks.before_call({"run_id": "r"}, CALL, Catalog()) for _ in range(8))
        why = [event.denied for event in await asyncio.gather(*asked)]
    refused = [one for one in why if "all answers together take too much memory now" in one]
    assert len(refused) >= 5, why
    assert all("did not answer within 2 s" in one for one in why if one not in refused)
    assert 32 * 2**20 < most <= ANSWERS.limit
    assert ANSWERS.used == 0


async def test_a_name_that_leads_to_a_metadata_service_is_not_asked():
    event = await judged("http://169.254.169.254/latest")
    assert "cannot be reached" in event.denied


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"signing_key": lambda: None}, "no signing key"),
        ({"signing_key": lambda: "whsec_%%"}, "not base64"),
        ({"headers": {"X-Token": lambda: None}}, "no value for its header X-Token"),
    ],
)
async def test_without_its_key_nothing_is_sent(about, why):
    async with serving(http()) as (url, requests):
        assert why in (await judged(url, **about)).denied
    assert requests == []


async def test_the_metrics_count_what_hooks_were_asked():
    async with serving(http(b'{"deny": "no"}')) as (url, _):
        hooks = (HookConfig("beforeCall", url),)
        async with stage(call("pay"), "{}", "x", tools=(box(pay),), hooks=hooks) as helper:
            await helper.answer()
            text = (await helper.http.get("/metrics")).text
    labels = 'at="beforeCall",hook="beforeCall at 127.0.0.1"'
    assert f'diptych_hook_calls_total{{{labels},outcome="acted"}} 1.0' in text
    assert f"diptych_hook_seconds_count{{{labels}}} 1.0" in text


async def pay() -> str:
    """Pay."""
    return "paid"
