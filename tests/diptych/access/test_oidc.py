"""The keys of issuers: fetched by discovery, and kept while the issuer is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from diptych.access.oidc import (
    MAX_AGE_SECONDS,
    MAX_BYTES,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    IssuerKeys,
)

URL = "https://issuer.example.com"
KEY = {"kty": "RSA", "kid": "one"}


class Response:
    headers: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._chunks = [body[n : n + 65_536] for n in range(0, len(body), 65_536)]
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            await asyncio.sleep(0)
            yield chunk


class Session:
    """Answers by URL; an exception is raised."""

    def __init__(self, **pages: Any) -> None:
        self.pages: dict[str, Any] = pages
        self.asked: list[str] = []

    def get(self, url: str, *, allow_redirects: bool, ssl: Any, proxy: str | None) -> Any:
        assert not allow_redirects
        assert proxy is None
        assert ssl is True
        return self._get(url)

    @asynccontextmanager
    async def _get(self, url: str) -> AsyncIterator[Response]:
        import orjson  # noqa: PLC0415

        self.asked.append(url)
        page = self.pages.get(url.removeprefix(URL))
        if isinstance(page, Exception):
            raise page
        if isinstance(page, bytes | int) or page is None:
            body = page if isinstance(page, bytes) else b"{}"
            yield Response(page if isinstance(page, int) else 200 if page else 404, body)
        else:
            yield Response(200, orjson.dumps(page))


class Clock:
    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


DISCOVERY = "/.well-known/openid-configuration"
GOOD: dict[str, Any] = {
    DISCOVERY: {"issuer": URL, "jwks_uri": f"{URL}/keys"},
    "/keys": {"keys": [KEY]},
}


def issuer(clock: Clock, **pages: Any) -> tuple[IssuerKeys, Session]:
    session = Session()
    session.pages = {**GOOD, **pages}
    return IssuerKeys(URL, session, clock), session  # type: ignore[arg-type]


async def test_keys_come_by_discovery() -> None:
    keys, session = issuer(Clock())
    assert keys.keys() == ()
    await keys.refresh(is_unknown_key=False)
    assert keys.keys() == [KEY]
    assert session.asked == [URL + DISCOVERY, URL + "/keys"]


async def test_unknown_keys_fetch_them_at_most_once_a_minute() -> None:
    clock = Clock()
    keys, session = issuer(clock)
    for _ in range(50):
        await keys.refresh(is_unknown_key=True)
    assert len(session.asked) == 2
    clock.seconds += REFRESH_SECONDS
    await keys.refresh(is_unknown_key=True)
    assert len(session.asked) == 4


async def test_the_first_keys_are_tried_for_sooner() -> None:
    clock = Clock()
    keys, session = issuer(clock)
    session.pages[DISCOVERY] = TimeoutError()
    for _ in range(5):
        await keys.refresh(is_unknown_key=False)
    assert len(session.asked) == 1
    session.pages = dict(GOOD)
    clock.seconds += RETRY_SECONDS
    await keys.refresh(is_unknown_key=False)
    assert keys.keys() == [KEY]


async def test_requests_that_come_together_wait_for_one_fetch() -> None:
    keys, session = issuer(Clock())
    await asyncio.gather(*(keys.refresh(is_unknown_key=True) for _ in range(20)))
    assert len(session.asked) == 2
    assert keys.keys() == [KEY]


async def test_keys_that_are_old_are_fetched_anew() -> None:
    clock = Clock()
    keys, session = issuer(clock)
    await keys.refresh(is_unknown_key=False)
    await keys.refresh(is_unknown_key=False)
    clock.seconds += MAX_AGE_SECONDS
    await keys.refresh(is_unknown_key=False)
    assert len(session.asked) == 4


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param({DISCOVERY: TimeoutError()}, id="away"),
        pytest.param({DISCOVERY: OSError("refused")}, id="at an address that is refused"),
        pytest.param({DISCOVERY: 500}, id="failing"),
        pytest.param({DISCOVERY: 302}, id="redirecting"),
        pytest.param({DISCOVERY: b"<html>"}, id="no JSON"),
        pytest.param({DISCOVERY: b"[]"}, id="no object"),
        pytest.param({DISCOVERY: {"issuer": "https://evil.example.com"}}, id="another's"),
        pytest.param(
            {DISCOVERY: {"issuer": URL, "jwks_uri": "http://plain.example.com/keys"}}, id="no TLS"
        ),
        pytest.param({"/keys": b" " * (MAX_BYTES + 1)}, id="too large"),
        pytest.param({"/keys": {"keys": "none"}}, id="no list"),
    ],
)
async def test_an_issuer_that_cannot_be_asked_keeps_its_keys(pages: dict[str, Any]) -> None:
    clock = Clock()
    keys, session = issuer(clock)
    await keys.refresh(is_unknown_key=False)
    session.pages |= pages
    clock.seconds += MAX_AGE_SECONDS
    await keys.refresh(is_unknown_key=True)
    assert keys.keys() == [KEY]
