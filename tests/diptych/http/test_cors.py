"""Which web pages may use an agent's API, and what they may read of its replies."""

from typing import Any

import pytest
from support.face import HI, error_of, face

from diptych.manifest.settings import ChatConfig

APP = "https://app.example.com"
CHAT = "/v1/chat/completions"
OPEN = ChatConfig(cors_origins=(APP,))
PREFLIGHT = {
    "Origin": APP,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}
ALLOWED = "Access-Control-Allow-Origin"


async def test_a_page_of_an_allowed_origin_may_ask_and_read_our_headers() -> None:
    async with face(chat=OPEN) as helper:
        preflight = await helper.http.options(CHAT, headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers[ALLOWED] == APP
        asked = PREFLIGHT["Access-Control-Request-Headers"]
        assert preflight.headers["Access-Control-Allow-Headers"] == asked
        for stream in (False, True):
            body = {**HI, "stream": stream, "seed": 1}
            reply = await helper.http.post(CHAT, json=body, headers={"Origin": APP})
            assert reply.status_code == 200
            assert reply.headers[ALLOWED] == APP
            exposed = reply.headers["Access-Control-Expose-Headers"]
            for name in ("X-Run-ID", "X-Session-ID", "X-Request-Id", "X-Diptych-Warning"):
                assert name in exposed
                assert name in reply.headers


@pytest.mark.parametrize(
    ("chat", "origin"),
    [
        pytest.param(ChatConfig(), APP, id="if none is allowed"),
        pytest.param(OPEN, "https://evil.example", id="of another host"),
        pytest.param(OPEN, "http://app.example.com", id="of another scheme"),
    ],
)
async def test_no_other_page_may(chat: ChatConfig, origin: str) -> None:
    async with face(chat=chat) as helper:
        headers = {**PREFLIGHT, "Origin": origin}
        preflight = await helper.http.options(CHAT, headers=headers)
        assert preflight.status_code in (400, 405)
        assert ALLOWED not in preflight.headers
        reply = await helper.http.post(CHAT, json=HI, headers={"Origin": origin})
        assert ALLOWED not in reply.headers


async def test_all_pages_may_be_allowed() -> None:
    async with face(chat=ChatConfig(cors_origins=("*",))) as helper:
        headers = {"Origin": "https://any.example"}
        assert (await helper.http.get("/v1/models", headers=headers)).headers[ALLOWED] == "*"


async def test_what_no_page_needs_is_open_to_none() -> None:
    async with face(chat=ChatConfig(cors_origins=("*",))) as helper:
        for path in ("/memory/events", "/metrics", "/a2a", "/.well-known/agent-card.json"):
            assert ALLOWED not in (await helper.http.get(path, headers={"Origin": APP})).headers
            assert (await helper.http.options(path, headers=PREFLIGHT)).status_code != 200


async def test_on_loopback_a_foreign_page_is_refused_all_the_same() -> None:
    async with face(chat=OPEN, on_loopback=True) as helper:
        reply = await helper.http.post(CHAT, json=HI, headers={"Origin": APP})
        error_of(reply, 403)
        assert (await helper.http.options(CHAT, headers=PREFLIGHT)).status_code == 403
        local: dict[str, Any] = {"Origin": "http://localhost:3000"}
        assert (await helper.http.post(CHAT, json=HI, headers=local)).status_code == 200
