"""Every response has an id for its request: the caller's, or one that was made."""

import re

import pytest
from support.face import HI, face

HEADER = "X-Request-Id"
MADE = re.compile(r"req-[0-9a-f]{32}")


async def test_a_valid_id_is_echoed() -> None:
    async with face() as helper:
        for sent in ("a" * 128, "0b/7+=@:~_."):
            for path in ("/v1/models", "/health", "/nothing", "/openapi.json"):
                response = await helper.http.get(path, headers={HEADER: sent})
                assert response.headers.get_list(HEADER) == [sent]


async def test_without_a_valid_one_an_id_is_made() -> None:
    async with face() as helper:
        for sent in ([], ["a b"], ["a" * 129], ["a", "b"], ["a\tb"]):
            headers = [(HEADER.encode(), each.encode()) for each in sent]
            made = [
                (await helper.http.get("/health", headers=headers)).headers[HEADER] for _ in "12"
            ]
            assert all(MADE.fullmatch(each) for each in made)
            assert made[0] != made[1]


async def test_streams_errors_and_refusals_have_one_too(caplog: pytest.LogCaptureFixture) -> None:
    headers = {HEADER: "r-1"}
    async with face(on_loopback=True) as helper:
        chat = "/v1/chat/completions"
        responses = [
            await helper.http.post(chat, json={**HI, "stream": True}, headers=headers),
            await helper.http.post(chat, json={}, headers=headers),
            await helper.http.post(chat, content=b"hi", headers=headers),
            await helper.http.post(chat, content=b"x" * 2**21, headers=headers),
            await helper.http.get("/health", headers={**headers, "Host": "evil.example"}),
        ]
        assert [response.status_code for response in responses] == [200, 400, 415, 413, 421]
        assert {response.headers[HEADER] for response in responses} == {"r-1"}

        @helper.app.get("/broken")
        async def broken() -> None:
            raise ZeroDivisionError

        response = await helper.http.get("/broken", headers=headers)
        assert (response.status_code, response.headers[HEADER]) == (500, "r-1")
        assert "request r-1 broke" in caplog.text
