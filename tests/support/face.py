"""The web application of an agent over doubles of its ports, asked without a socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from support.doubles import CountingClock, House, house

from diptych.adapters.unshared import NoFeed
from diptych.http.app import Served, create_app
from diptych.http.card_facts import CardFacts
from diptych.http.health import Readiness
from diptych.live import Stores

NAME = "helper"
HI = {"messages": [{"role": "user", "content": "hi"}]}
LOCAL = "http://localhost:8000"


@dataclass
class Face:
    """The application's client, and the rooms behind it."""

    http: httpx.AsyncClient
    house: House


@asynccontextmanager
async def face(*replies: Any, on_loopback: bool = False, **doubles: Any) -> AsyncIterator[Face]:
    """Make the application of an agent called `helper`; `doubles` are those of `house`."""
    rooms = house(*(replies or ("{}", "Hello!")), **doubles)
    stores = Stores(rooms.store, rooms.store, rooms.store.owners, NoFeed(), CountingClock())
    card = CardFacts(NAME, "Helps.", "1.0.0")
    served = Served(card, rooms.runs, stores, _ready, _no_metrics)
    transport = httpx.ASGITransport(
        create_app(served, on_loopback=on_loopback), raise_app_exceptions=False
    )
    client = httpx.AsyncClient(transport=transport, base_url=LOCAL)
    async with asyncio.timeout(30), client as http:  # this transport knows no timeouts
        yield Face(http, rooms)
    await rooms.runs.close()


def openai_error(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is an error in OpenAI's form, and give it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"] in ("invalid_request_error", "server_error", "aborted")
    return error


def problem(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is problem+json (RFC 9457), and give it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert {"type", "title", "detail"} <= body.keys()
    assert body["detail"]
    return body


def error_of(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is an error, in the form that its path speaks."""
    speaks_openai = response.request.url.path.startswith("/v1/")
    return (openai_error if speaks_openai else problem)(response, status)


def _ready() -> Readiness:
    return Readiness(is_ready=True)


def _no_metrics() -> tuple[bytes, str]:
    return b"", "text/plain"
