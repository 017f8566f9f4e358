"""What a foreign web page cannot do to an agent on loopback (DNS rebinding)."""

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


async def test_a_foreign_host_is_refused() -> None:
    async with face(on_loopback=True) as helper:
        for host in FOREIGN_HOSTS:
            for method, path in PATHS:
                body = HI if method == "POST" else None
                response = await helper.http.request(
                    method, path, json=body, headers={"Host": host}
                )
                error = error_of(response, 421)
                assert "localhost" in str(error)
        assert await helper.house.runs.entries() == []


async def test_a_foreign_origin_is_refused() -> None:
    async with face(on_loopback=True) as helper:
        for origin in (
            "https://evil.example",
            "http://localhost.evil.example",
            "null",
            "",
            "file://",
            "http://127.0.0.1@evil.example",
            "chrome-extension://abc",
        ):
            for method, path in PATHS:
                body = HI if method == "POST" else None
                headers = {"Origin": origin}
                error_of(await helper.http.request(method, path, json=body, headers=headers), 403)
        assert await helper.house.runs.entries() == []


async def test_what_comes_from_this_machine_is_answered() -> None:
    async with face(on_loopback=True) as helper:
        for headers in (
            {},
            {"Host": "LOCALHOST"},
            {"Host": "127.0.0.1:8000"},
            {"Host": "127.9.9.9:1"},
            {"Host": "[::1]:8000"},
            {"Origin": "http://localhost:3000"},
            {"Origin": "https://[::1]"},
        ):
            response = await helper.http.post("/v1/chat/completions", json=HI, headers=headers)
            assert response.status_code == 200, response.text


async def test_two_hosts_in_one_request_are_both_looked_at() -> None:
    async with face(on_loopback=True) as helper:
        for hosts in (("localhost", "evil.example"), ("evil.example", "localhost")):
            headers = [("Host", host) for host in hosts]
            error_of(await helper.http.get("/v1/models", headers=headers), 421)


async def test_elsewhere_no_host_breaks_anything() -> None:
    async with face() as helper:
        for host in FOREIGN_HOSTS:
            headers = {"Host": host, "Origin": "https://a.example"}
            for path in ("/v1/models", "/nothing", "/v1/models/", "/memory/events?limit=x"):
                assert (await helper.http.get(path, headers=headers)).status_code < 500
