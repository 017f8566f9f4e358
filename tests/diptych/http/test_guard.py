"""What a foreign web page cannot do to an agent on loopback (DNS rebinding)."""

import pytest
from support.face import HI, error_of, face

PATHS = [
    ("POST", "/v1/chat/completions"),
    ("GET", "/memory/events"),
    ("POST", "/a2a"),
    ("POST", "/a2a/rest/message:send"),
    ("POST", "/mcp"),
    ("GET", "/metrics"),
    ("GET", "/nothing"),
]
FOREIGN_HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "evil.example#localhost",
    "user@localhost",
    "localhost:8000:9",
    "localhost, evil.example",
    "128.0.0.1",
    "[",
    "",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_a_foreign_host_is_refused(host: str) -> None:
    async with face(on_loopback=True) as helper:
        for method, path in PATHS:
            body = HI if method == "POST" else None
            response = await helper.http.request(method, path, json=body, headers={"Host": host})
            error = error_of(response, 421)
            assert "localhost" in str(error)
        assert await helper.house.runs.entries() == []


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost.evil.example",
        "null",
        "",
        "file://",
        "http://127.0.0.1@evil.example",
        "chrome-extension://abc",
    ],
)
async def test_a_foreign_origin_is_refused(origin: str) -> None:
    async with face(on_loopback=True) as helper:
        for method, path in PATHS:
            body = HI if method == "POST" else None
            headers = {"Origin": origin}
            error_of(await helper.http.request(method, path, json=body, headers=headers), 403)
        assert await helper.house.runs.entries() == []


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="localhost"),
        pytest.param({"Host": "LOCALHOST"}, id="in capitals, without a port"),
        pytest.param({"Host": "127.0.0.1:8000"}, id="the address"),
        pytest.param({"Host": "127.9.9.9:1"}, id="another address of loopback"),
        pytest.param({"Host": "[::1]:8000"}, id="the address of IPv6"),
        pytest.param({"Origin": "http://localhost:3000"}, id="a page of this machine"),
        pytest.param({"Origin": "https://[::1]"}, id="a page of this machine over IPv6"),
    ],
)
async def test_what_comes_from_this_machine_is_answered(headers: dict[str, str]) -> None:
    async with face(on_loopback=True) as helper:
        response = await helper.http.post("/v1/chat/completions", json=HI, headers=headers)
        assert response.status_code == 200, response.text


async def test_two_hosts_in_one_request_are_both_looked_at() -> None:
    async with face(on_loopback=True) as helper:
        for hosts in (("localhost", "evil.example"), ("evil.example", "localhost")):
            headers = [("Host", host) for host in hosts]
            error_of(await helper.http.get("/v1/models", headers=headers), 421)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_elsewhere_no_host_breaks_anything(host: str) -> None:
    async with face() as helper:
        headers = {"Host": host, "Origin": "https://a.example"}
        for path in ("/v1/models", "/nothing", "/v1/models/", "/memory/events?limit=x"):
            assert (await helper.http.get(path, headers=headers)).status_code < 500
