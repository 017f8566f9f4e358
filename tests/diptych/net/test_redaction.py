"""Secrets are found in texts, values and streams."""

import base64
import json
import time
from urllib.parse import quote

import mcp_types
import pytest
from support.hostile import listed, mcp_app, serving
from support.mcp_tools import unheard

from diptych.core.errors import ToolError
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import McpTools
from diptych.net.redaction import MARK, MAX_SECRETS, Redactor, remembered, without_tokens

SECRET = 'Sk-4f9/Zq+77"xé_Lm0PwYt2'
RAW = SECRET.encode()
ECHOES = {
    "whole": SECRET,
    "base64 of a text around it": base64.b64encode(b"user:" + RAW + b"\n").decode(),
    "base64 of a text around it, shifted": base64.b64encode(b"u:" + RAW).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(b"x" + RAW).decode(),
    "quoted": quote(SECRET, safe=""),
    "JSON": json.dumps(SECRET),
}


def redactor(*secrets):
    made = Redactor()
    for secret in secrets:
        made.remember(secret)
    return made


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_an_echo_of_a_secret_is_found_also_in_a_stream(echo):
    shown = redactor(SECRET).redact(f"it is <{echo}> indeed")
    assert MARK in shown
    assert shown.endswith("> indeed")
    left = shown.replace(MARK, "").removeprefix("it is <").removesuffix("> indeed")
    assert len(left) <= 12  # of base64 the characters that a neighbour has a part in
    text = f"it is <{echo}> indeed"
    for size in (1, 3, 100):
        stream = redactor(SECRET).stream()
        pieces = [stream.add(text[n : n + size]) for n in range(0, len(text), size)]
        assert "".join([*pieces, stream.end()]) == shown


def test_a_stream_holds_back_only_what_may_begin_a_secret():
    stream = redactor("abcdefgh").stream()
    told = [stream.add(text) for text in ("hello ", "abc", "d", "x", "xabcd", "e")]
    assert told == ["hello ", "", "", "abcdx", "x", ""]
    assert stream.end() == "abcde"
    assert redactor().stream().add("abc") == "abc"


def test_what_is_no_secret_stays():
    text = "redis://default@store:6379 Bearer -----BEGIN PRIVATE KEY----- https://hooks.example.com"
    keeping = redactor(
        "redis://default:hunter2hunter2@store:6379/0",
        "Bearer 0123456789abc",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\n-----END PRIVATE KEY-----",
        "https://hooks.example.com/services/T0123456789abcdef",
        "short",
    )
    assert keeping.redact(text) is text
    for secret in ("hunter2hunter2", "0123456789abc", "MIIEvQIBADANBgkqhkiG9w0BAQ"):
        assert keeping.redact(f"x{secret}") == f"x{MARK}"
    assert keeping.redact("short") == "short"


def test_the_newest_secrets_are_remembered():
    many = redactor(*(f"secret-{n:05}-{n * 7919:08}" for n in range(MAX_SECRETS + 1)))
    newest, oldest = (f"secret-{n:05}-{n * 7919:08}" for n in (MAX_SECRETS, 0))
    assert many.redact(f"{newest} {oldest}") == f"{MARK} {oldest}"


def test_a_rotated_secret_stays_secret(monkeypatch):
    from diptych.net import redaction  # noqa: PLC0415 - replaced in this test alone

    monkeypatch.setattr(redaction, "SECRETS", Redactor())
    values = iter(["first-canary", None, "second-canary"])
    read = remembered(lambda: next(values))
    assert [read(), read(), read()] == ["first-canary", None, "second-canary"]
    assert redaction.SECRETS.redact("first-canary second-canary") == f"{MARK} {MARK}"


@pytest.mark.parametrize(
    "text",
    ["eyJ" * 300_000, ("eyJ" * 99 + ".") * 3_000],
)
def test_looking_for_tokens_in_a_hostile_text_takes_a_moment(text):
    started = time.process_time()
    without_tokens(text)
    assert time.process_time() - started < 1.0


async def test_no_tool_echoes_the_secret_of_its_header(monkeypatch):
    from diptych.net import redaction  # noqa: PLC0415 - the process's own secrets

    redaction.SECRETS.remember(SECRET)
    text = "\n".join(ECHOES.values())
    content = [mcp_types.TextContent(type="text", text=text)]
    answers = [
        mcp_types.CallToolResult(content=content, structured_content={"x": [text]}),
        mcp_types.CallToolResult(content=content, is_error=True),
    ]
    for answer in answers:
        app = mcp_app([listed("t", f"say {SECRET}")], answer)
        async with serving(app) as url:
            async with McpTools([ToolServerConfig("s", url=f"{url}/mcp")]) as tools:
                await tools.wait_for_first_attempt()
                ((tool,), _) = tools.snapshot()
                assert tool.description == f"say {MARK}"
                try:
                    output = await tools.call(tool, {}, unheard)
                    shown = f"{output.text} {output.value}"
                except ToolError as error:
                    shown = f"{error.message} {error}"
        assert shown.count(MARK) >= 2 * len(ECHOES) or answer.is_error
        assert SECRET not in shown
