"""What of a secret is found in a text, and how long that takes."""

import base64
import json
import random
import string
import time
from urllib.parse import quote

import mcp_types
import pytest
from support.hostile import listed, mcp_app, serving

from diptych.core.errors import ToolError
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import McpTools
from diptych.net.redaction import MARK, MAX_SECRETS, Redactor, remembered, without_tokens

SECRET = 'Sk-4f9/Zq+77"xé_Lm0PwYt2'
RAW = SECRET.encode()
ECHOES = {
    "whole": SECRET,
    "reversed": SECRET[::-1],
    "its first 8 characters": SECRET[:8],
    "its last 8 characters": SECRET[-8:],
    "8 characters of it, reversed": SECRET[4:12][::-1],
    "base64": base64.b64encode(RAW).decode(),
    "base64 of a text around it": base64.b64encode(b"user:" + RAW + b"\n").decode(),
    "base64 of a text around it, shifted": base64.b64encode(b"u:" + RAW).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(b"x" + RAW).decode(),
    "reversed base64": base64.b64encode(RAW).decode()[::-1],
    "quoted": quote(SECRET, safe=""),
    "JSON": json.dumps(SECRET),
    "hexadecimal": RAW.hex(),
    "HEXADECIMAL": RAW.hex().upper(),
}


def redactor(*secrets):
    made = Redactor()
    for secret in secrets:
        made.remember(secret)
    return made


def longest_left(text, form):
    """Give how many characters of a form are still in a text, in a row."""
    return max(
        (
            size
            for size in range(1, len(form) + 1)
            for n in range(len(form) - size + 1)
            if form[n : n + size] in text
        ),
        default=0,
    )


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_an_echo_of_a_secret_is_found(echo, offset):
    text = "." * offset + f"it is <{echo}> indeed"
    shown = redactor(SECRET).redact(text)
    assert MARK in shown
    assert shown.endswith("> indeed")
    assert longest_left(shown.replace(MARK, ""), SECRET) < 8
    assert longest_left(shown.replace(MARK, ""), base64.b64encode(RAW).decode()) < 8


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("secret", ["Bearer-abcdefghij0123456789", "x1y2z3w4"])
def test_a_stream_tells_nothing_that_a_whole_text_would_not(secret, size):
    text = f"so {secret}, {secret[::-1]} and {secret[:7]}"
    stream = redactor(secret).stream()
    pieces = [stream.add(text[n : n + size]) for n in range(0, len(text), size)]
    shown = "".join([*pieces, stream.end()])
    assert longest_left(shown.replace(MARK, "#"), secret) < 8
    assert longest_left(shown.replace(MARK, "#"), secret[::-1]) < 8
    begun = shown.removeprefix("so ").partition(MARK)[0]
    assert secret.startswith(begun)
    assert len(begun) <= 3
    assert shown.count(MARK) == 2
    assert shown.endswith(f" and {secret[:7]}")


def test_a_stream_holds_nothing_back_that_begins_no_secret():
    stream = redactor("abcdefgh").stream()
    told = [stream.add(text) for text in ("hello ", "abc", "d", "x", "xabcd", "e")]
    assert told == ["hello ", "abc", "", "dx", "x", ""]
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
    for secret in ("hunter2hunter2", "0123456789abc", "MIIEvQIBADAN", "T0123456789abcdef"):
        assert secret[:8] not in keeping.redact(f"x{secret}")
    assert keeping.redact("short") == "short"


def test_values_are_redacted_everywhere():
    value = {"a": [SECRET, 1, None, {"b": f"x{SECRET}"}], SECRET: True}
    shown = redactor(SECRET).redact_value(value)
    assert shown == {"a": [MARK, 1, None, {"b": f"x{MARK}"}], MARK: True}


def test_the_newest_secrets_are_remembered():
    many = redactor(*(f"secret-{n:05}-{n * 7919:08}" for n in range(MAX_SECRETS + 1)))
    assert many.redact(f"secret-{MAX_SECRETS:05}") == MARK


def test_a_rotated_secret_stays_secret(monkeypatch):
    from diptych.net import redaction  # noqa: PLC0415 - replaced in this test alone

    monkeypatch.setattr(redaction, "SECRETS", Redactor())
    values = iter(["first-canary", None, "second-canary"])
    read = remembered(lambda: next(values))
    assert [read(), read(), read()] == ["first-canary", None, "second-canary"]
    assert redaction.SECRETS.redact("first-canary second-canary") == f"{MARK} {MARK}"


def test_a_result_of_a_mebibyte_takes_a_moment():
    letters = random.Random(1)
    secrets = ["".join(letters.choices(string.ascii_letters, k=48)) for _ in range(10)]
    many = redactor(*secrets)
    prose = ("The quick brown fox jumps over the lazy dog. " * 24_000)[: 2**20]
    began = time.process_time()
    assert many.redact(prose) is prose
    assert time.process_time() - began < 0.25  # 0.02 s are usual
    near = (secrets[0][:4] + "~") * (2**20 // 5)
    began = time.process_time()
    assert many.redact(near) == near
    assert time.process_time() - began < 1.5  # 0.2 s are usual


@pytest.mark.parametrize(
    "text",
    ["eyJ" * 300_000, "a." * 400_000, ("eyJ" * 99 + ".") * 3_000, "eyJ." * 2 + "x" * 900_000],
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
                    output = await tools.call(tool, {}, str)
                    shown = f"{output.text} {output.value}"
                except ToolError as error:
                    shown = f"{error.message} {error}"
        assert shown.count(MARK) >= 2 * len(ECHOES) - 2 or answer.is_error
        for echo in ECHOES.values():
            assert longest_left(shown, echo) < 8
