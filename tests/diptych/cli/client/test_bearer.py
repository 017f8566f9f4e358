"""The token on each request to an agent: renewed in time, and when it is refused."""

from collections.abc import Callable

import httpx
import pytest

from diptych.cli.client import bearer
from diptych.cli.client.bearer import BearerToken, token_of_environment
from diptych.cli.cluster.errors import ClusterError


class Agent:
    """Answers 200 to one token, 401 to any other; notes what it was sent."""

    def __init__(self, accepted: str) -> None:
        self.accepted = accepted
        self.sent: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request.headers["Authorization"])
        is_right = self.sent[-1] == f"Bearer {self.accepted}"
        return httpx.Response(200 if is_right else 401)


def client(agent: Agent, auth: httpx.Auth | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.MockTransport(agent), base_url="http://agent", auth=auth
    )


def numbered() -> tuple[Callable[[], str], list[str]]:
    made: list[str] = []

    def make() -> str:
        made.append(f"t{len(made) + 1}")
        return made[-1]

    return make, made


async def test_one_token_serves_many_requests() -> None:
    make, made = numbered()
    async with client(Agent("t1"), BearerToken(make)) as http:
        for _ in range(3):
            assert (await http.get("/")).status_code == 200
    assert made == ["t1"]


async def test_a_refused_token_is_replaced_once() -> None:
    make, made = numbered()
    agent = Agent("t2")
    async with client(agent, BearerToken(make)) as http:
        assert (await http.get("/")).status_code == 200
        agent.accepted = "none that it could have"
        assert (await http.get("/")).status_code == 401
    assert made == ["t1", "t2", "t3"]
    assert agent.sent == ["Bearer t1", "Bearer t2", "Bearer t2", "Bearer t3"]


async def test_a_token_is_replaced_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = numbered()
    token = BearerToken(make)
    assert await token.current() == "t1"
    monkeypatch.setattr(bearer, "RENEWED_AFTER", -1.0)
    assert await token.current() == "t2"
    assert made == ["t1", "t2"]


async def test_what_makes_no_token_says_why() -> None:
    def fail() -> str:
        raise ClusterError("forbidden")

    async with client(Agent("t"), BearerToken(fail)) as http:
        with pytest.raises(ClusterError, match="forbidden"):
            await http.get("/")


async def test_a_token_of_the_environment_is_not_sent_twice_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIPTYCH_TOKEN", " key \n")
    agent = Agent("another")
    async with client(agent, token_of_environment()) as http:
        assert (await http.get("/")).status_code == 401
    assert agent.sent == ["Bearer key"]
    monkeypatch.setenv("DIPTYCH_TOKEN", "")
    assert token_of_environment() is None
