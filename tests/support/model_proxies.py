"""A ModelAPI's proxy in this process, the endpoint behind it, and tokens of its callers."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from diptych.model_proxy.config import FILE, config_file
from diptych.model_proxy.process import ModelProxy
from diptych.models.connection import open_http_session
from diptych.net.memory_budget import MemoryBudget
from diptych.serve.http_server import run_http_server
from diptych.serve.process import ListenAddress, Sockets

KEY = ec.generate_private_key(ec.SECP256R1())
CLUSTER = "https://kubernetes.default.svc"
AUDIENCE = "diptych.dev/platform/modelapi/house"
SECRET = "sk-of-the-house-0123456789"
CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 70, "completion_tokens": 30}


def token(account: str = "team/clerk", key: Any = KEY, **claims: Any) -> str:
    """Sign a token of a ServiceAccount, `<namespace>/<name>`."""
    content = {
        "iss": CLUSTER,
        "aud": [AUDIENCE],
        "exp": int(time.time()) + 600,
        "sub": f"system:serviceaccount:{account.replace('/', ':')}",
    }
    return jwt.encode(content | claims, key, "ES256", headers={"kid": "k"})


def access(*agents: str) -> dict[str, Any]:
    jwk = jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key())
    issuer = {
        "url": CLUSTER,
        "audience": AUDIENCE,
        "isCluster": True,
        "jwks": {"keys": [{**json.loads(jwk), "kid": "k"}]},
    }
    operator = {"kind": "serviceaccount", "name": "diptych/operator"}
    auditor = {"kind": "serviceaccount", "name": "diptych/auditor"}
    grants = [{"to": [operator], "may": ["status"]}, {"to": [auditor], "may": ["read"]}]
    return {"issuers": [issuer], "grants": grants, "agents": list(agents)}


@dataclass
class Asked:
    """A request as the endpoint read it; `hung_up` is set when its client is gone."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> str | None:
        return next((value for n, value in self.headers if n.lower() == name), None)


async def until_true(claim: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Wait until something is true that is only told when asked."""
    async with asyncio.timeout(seconds):
        while not await claim():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Endpoint:
    """A model's endpoint that writes exactly the bytes that a test wants."""

    answer: Answer
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    @property
    def chats(self) -> list[Asked]:
        return [each for each in self.asked if each.line.startswith("POST")]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = [(line.split(": ")[0], line.split(": ", 1)[1]) for line in head[1:] if line]
        asked = Asked(head[0], headers, b"")
        asked.body = await reader.readexactly(int(asked.header("content-length") or 0))
        self.asked.append(asked)
        watching = asyncio.create_task(_watch(reader, asked))
        try:
            if asked.line.startswith("GET"):
                names = ("small", "large", "secret-one")
                await write(writer, json.dumps({"data": [{"id": name} for name in names]}).encode())
            else:
                await self.answer(asked, writer)
        finally:
            writer.close()
            watching.cancel()


async def _watch(reader: asyncio.StreamReader, asked: Asked) -> None:
    with suppress(ConnectionError):
        await reader.read()
    asked.hung_up.set()


async def write(
    writer: asyncio.StreamWriter, *pieces: bytes, status: str = "200 OK", headers: str = ""
) -> None:
    """Write a reply that ends with the connection, each piece by itself."""
    writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n".encode())
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


def replying(body: bytes, **reply: Any) -> Answer:
    """Answer every request with the same bytes."""

    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, body, **reply)

    return answer


@asynccontextmanager
async def endpoint(answer: Answer | None = None) -> AsyncIterator[Endpoint]:
    usual = replying(json.dumps({"choices": [], "usage": USAGE}).encode())
    there = Endpoint(answer or usual)
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.create_task(there.serve(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    there.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield there
    finally:
        server.close()
        for task, writer in tasks.items():
            task.cancel()
            writer.transport.abort()  # a task that has not begun closes nothing
        await asyncio.gather(*tasks, return_exceptions=True)


class Files:
    """The files that a proxy reads."""

    def __init__(self, folder: Path, endpoint: str, **spec: Any) -> None:
        self.folder = folder
        self.key = folder / "key"
        self.key.write_text(SECRET + "\n")
        self.spec = {"endpoint": endpoint, "apiKey": {"file": str(self.key)}, "proxy": {}, **spec}
        self.agents = ["team/clerk"]
        self.write()

    def write(self, **spec: Any) -> None:
        """Write the configuration, with changed fields of `spec`."""
        self.spec |= spec
        content = {
            "name": "house",
            "namespace": "platform",
            "spec": self.spec,
            "access": access(*self.agents),
        }
        self.write_text(json.dumps(content))

    def write_text(self, text: str) -> None:
        """Replace the configuration at once, as the kubelet does."""
        newer = self.folder / "newer"
        newer.write_text(text)
        newer.rename(self.folder / FILE)


@dataclass
class Served:
    """A proxy that is served, and how to ask it."""

    url: str
    http: aiohttp.ClientSession
    proxy: ModelProxy

    def post(self, body: bytes | dict[str, Any], path: str = CHAT, **headers: str) -> Any:
        """Send a request as an allowed Agent, unless `headers` say otherwise."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        usual = {"Authorization": f"Bearer {token()}", "Content-Type": "application/json"}
        return self.http.post(self.url + path, data=io.BytesIO(content), headers=usual | headers)

    async def ask(self, **fields: Any) -> tuple[int, Any]:
        """Ask for a reply of the model `small`; return the status and the JSON."""
        async with self.post({"model": "small", "messages": [], **fields}) as reply:
            return reply.status, json.loads(await reply.read())

    async def get(self, path: str, account: str = "team/clerk") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token(account)}"} if account else {}
        async with self.http.get(self.url + path, headers=headers) as reply:
            return reply.status, json.loads(await reply.read())

    async def metrics(self) -> str:
        return self.proxy._render_metrics()[0].decode()


@asynccontextmanager
async def proxy(files: Files, memory: int | None = None) -> AsyncIterator[Served]:
    """Serve a proxy on loopback."""
    sockets = Sockets(ListenAddress(port=0), 1)
    budget = MemoryBudget(memory)
    async with (
        open_http_session() as http,
        ModelProxy(config_file(files.folder), http, budget) as put_together,
        run_http_server([(put_together.app, next(iter(sockets)))], budget),
        aiohttp.ClientSession(auto_decompress=False) as client,
    ):
        yield Served(sockets.urls[0], client, put_together)
