"""The web application of an agent over doubles of its ports, asked without a socket.

One process, or several that share a store: `replicas` is that, over a double of the store or over
a real Redis.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
from fastapi import FastAPI
from support import redis_stores
from support.doubles import EPOCH, CountingClock, FunctionAgents, FunctionTools, House, house

from diptych.access.bearer import Authenticator
from diptych.access.grants import Grant, Grantee, Right
from diptych.access.limits import Limits
from diptych.core.codec import Record
from diptych.core.events import Signal
from diptych.http.access_guard import AccessPolicy
from diptych.http.agent_profile import AgentProfile
from diptych.http.health import Readiness
from diptych.manifest.settings import ChatConfig
from diptych.net.memory_budget import MemoryBudget
from diptych.ports import Delta, FeedItem, Model, Notice, Reply
from diptych.ports.entries import Lease
from diptych.ports.stores import Stores
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.service import RunService
from diptych.serve.app import AppDependencies, create_app
from diptych.stores.memory.store import MemoryStore

NAME = "helper"
HI = {"messages": [{"role": "user", "content": "hi"}]}
LOCAL = "http://localhost:8000"


@dataclass
class Face:
    """The application's client, and the rooms behind it."""

    http: httpx.AsyncClient
    house: House
    app: FastAPI
    clock: CountingClock


@asynccontextmanager
async def face(  # noqa: PLR0913 - what a test may want else
    *replies: Any,
    on_loopback: bool = False,
    access: AccessPolicy | None = None,
    limits: Limits | None = None,
    chat: ChatConfig | None = None,
    inputs: tuple[str, ...] = (),
    memory_budget: MemoryBudget | None = None,
    has_docs: bool = False,
    **doubles: Any,
) -> AsyncIterator[Face]:
    """Make the application of an agent called `helper`; `doubles` are those of `house`."""
    rooms = house(*(replies or ("{}", "Hello!")), memory_budget=memory_budget, **doubles)
    async with asyncio.timeout(30):  # the transport knows no timeouts
        bounds = {
            "chat": chat or ChatConfig(),
            "inputs": inputs,
            "access": access,
            "limits": limits or Limits(),
            "memory_budget": memory_budget or MemoryBudget(),
            "has_docs": has_docs,
        }
        async with _faced(rooms, on_loopback=on_loopback, **bounds) as helper:
            yield helper
        await rooms.runs.close()


@asynccontextmanager
async def replicas(
    *models: Model,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    redis_url: str = "",
    chat: ChatConfig | None = None,
) -> AsyncIterator[list[Face]]:
    """Make one replica of an agent for each model; what one leaves the others take up.

    Set `lease_keeper.TAKEOVER_SECONDS` low for that.
    """
    clock = CountingClock()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(30))
        kept: list[Any] = [SharedMemory()] * len(models)
        if redis_url:
            kept = await stack.enter_async_context(redis_stores.stores(redis_url, len(models)))
        helpers = []
        for model, store in zip(models, kept, strict=True):
            stores = Stores(store, store, store, store, clock)
            hands, agents = FunctionTools(tools or {}), FunctionAgents()
            runs = RunService(AgentDefinition("Be brief."), Backends(model, hands, agents), stores)
            runs.start_background()
            stack.push_async_callback(runs.close)
            rooms = House(runs, store, model, hands, agents)
            helpers.append(
                await stack.enter_async_context(_faced(rooms, chat=chat or ChatConfig()))
            )
        yield helpers


@asynccontextmanager
async def _faced(
    rooms: House, *, on_loopback: bool = False, inputs: tuple[str, ...] = (), **bounds: Any
) -> AsyncIterator[Face]:
    stores = rooms.runs._stores
    card = AgentProfile(NAME, "Helps.", "1.0.0", inputs=inputs)
    served = AppDependencies(card, rooms.runs, stores, _ready, _no_metrics, **bounds)
    app = create_app(served, on_loopback=on_loopback)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as http:
        yield Face(http, rooms, app, cast("CountingClock", stores.clock))


def access_of(rights: Mapping[str, Collection[Right]], **more: Any) -> AccessPolicy:
    """Let callers in by their keys, `key-of-<name>`, with these rights."""

    async def refresh(_: str) -> None: ...

    keys = {name: (lambda name=name: f"key-of-{name}") for name in rights}
    grants = [Grant((Grantee("key", n),), frozenset(may)) for n, may in rights.items()]
    known = Authenticator(list, keys)
    return AccessPolicy(known, lambda: grants, refresh, NAME, [].append, **more)


def as_(name: str) -> dict[str, str]:
    """Give the headers of a caller; nobody's if it has no name."""
    return {"Authorization": f"Bearer key-of-{name}"} if name else {}


class Speaker(Model):
    """A model that goes to its answer at once, and stops in it at each `...` until `go`."""

    def __init__(self, *pieces: Any) -> None:
        self.pieces = pieces
        self.go = asyncio.Event()
        self.has_stopped = asyncio.Event()

    async def complete(self, request: Any) -> Reply:
        return Reply("{}")

    async def stream(self, request: Any) -> Any:
        for piece in self.pieces:
            if piece is ...:
                self.has_stopped.set()
                await self.go.wait()
            else:
                yield Delta(piece)
                await asyncio.sleep(0.03)  # each piece is a text event of its own
        yield Delta(finish_reason="stop")


class SharedMemory(MemoryStore):
    """A store of several processes, whose leases outlive them."""

    lease_seconds = 10.0

    def __init__(self) -> None:
        super().__init__(EPOCH)
        self.asked: list[Callable[[str, str, Signal], None]] = []
        self._demands: defaultdict[str, list[Signal]] = defaultdict(list)
        self._watches: defaultdict[str, list[Callable[[FeedItem], None]]] = defaultdict(list)

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        await super().append(records, lease, awaits_input=awaits_input)
        for record in records:
            self._put(record.run_id, record)

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        self._put(run_id, notice)

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        self._watches[run_id].append(put)
        return lambda: self._watches[run_id].remove(put)

    def on_signal(self, asked: Callable[[str, str, Signal], None]) -> None:
        self.asked.append(asked)

    async def send_signal(self, run_id: str, demand: Signal) -> None:
        self._demands[run_id].append(demand)
        session_id = (await self.entry(run_id)).session_id
        for asked in self.asked:
            asked(session_id, run_id, demand)

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        return self._demands[run_id]

    def _put(self, run_id: str, item: FeedItem) -> None:
        for put in tuple(self._watches[run_id]):
            put(item)


def openai_error(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is an error in OpenAI's form, and give it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    return checked_error(body["error"])


def checked_error(error: dict[str, Any]) -> Mapping[str, Any]:
    """Check that an error is in OpenAI's form, and give it."""
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


def rpc_error(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is an error of JSON-RPC 2.0 without an id, and give it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    assert (body.keys(), body["jsonrpc"]) == ({"jsonrpc", "id", "error"}, "2.0")
    assert body["id"] is None
    error: dict[str, Any] = body["error"]
    is_type = status == 415 and response.url.path.startswith("/a2a")
    code = -32603 if status == 429 or status >= 500 else -32005 if is_type else -32600
    assert error["code"] == code
    assert error["message"]
    (info,) = error["data"]
    assert info["reason"]
    return error


def rest_error(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is an error of A2A's REST binding, and give it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    error: dict[str, Any] = body["error"]
    has_method = error["details"][0]["domain"] != "diptych.dev"
    if response.request.url.path.startswith("/a2a/rest/v1/") and has_method:  # A2A 0.3
        assert body.keys() == {"error", "message", "type", "code"}
        assert body["message"] == error["message"]
    else:
        assert body.keys() == {"error"}
    assert error["code"] == status
    assert error["message"]
    assert error["status"].isupper()
    info = error["details"][0]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert info["reason"]
    assert info["domain"]
    return error


def error_of(response: httpx.Response, status: int) -> Mapping[str, Any]:
    """Check that a response is an error, in the form that its path speaks."""
    path = response.request.url.path
    if path.rstrip("/") in ("/a2a", "/mcp"):
        return rpc_error(response, status)
    if path == "/a2a/rest" or path.startswith("/a2a/rest/"):
        return rest_error(response, status)
    return (openai_error if path.startswith("/v1/") else problem)(response, status)


def _ready() -> Readiness:
    return Readiness(is_ready=True)


def _no_metrics() -> tuple[bytes, str]:
    return b"", "text/plain"
