"""Tools whose server wants OAuth tokens: the agent's own (`as: agent`)."""

import functools
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp.server import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from starlette.responses import JSONResponse, RedirectResponse, Response
from support import hostile
from support.authorization_server import (
    METADATA,
    RESOURCE_METADATA,
    AuthorizationServer,
    Guarded,
    Token,
)
from support.mcp_tools import QUICK, reasons, tool_of, unheard

from diptych.core.messages import CallOutput
from diptych.manifest.settings import ToolAuthConfig, ToolServerConfig
from diptych.mcp import McpTools
from diptych.mcp import oauth as authorization
from diptych.mcp.oauth import OAuthClient
from diptych.mcp.sign_in import PersonTokens, SignIns, Site
from diptych.mcp.supervisor import ServerSupervisor
from diptych.mcp.tokens import TokenBook, grant_key
from diptych.net.redaction import SECRETS
from diptych.stores.memory.vault import MemoryVault

SECRET = "s3cret-of-the-agent"


def pages() -> MCPServer[Any]:
    server = MCPServer("pages")

    @server.tool()
    def look(page: str) -> str:
        """Look a page up."""
        return f"{page}: found"

    @server.tool()
    def write(page: str) -> str:
        """Write a page."""
        return f"{page}: written"

    return server


@asynccontextmanager
async def guarded(**options: Any) -> AsyncIterator[Guarded]:
    """Serve an MCP server, and the authorization server that it names."""
    server = AuthorizationServer(clients={"robot": SECRET})
    async with hostile.serving(server.app()) as server.url:
        resource = Guarded(pages().streamable_http_app(json_response=True), server, **options)
        async with hostile.serving(resource) as resource.url:
            yield resource


def config(resource: Guarded, **auth: Any) -> ToolServerConfig:
    given: dict[str, Any] = {
        "client_id": "robot",
        "client_secret": lambda: SECRET,
        "issuer": resource.server.url,
    }
    return ToolServerConfig("pages", f"{resource.url}/mcp", auth=ToolAuthConfig(**(given | auth)))


def grant_of(resource: Guarded, token: OAuthToken) -> authorization.Grant:
    url = resource.server.url
    metadata = {
        "issuer": url,
        "authorization_endpoint": f"{url}/authorize",
        "token_endpoint": f"{url}/token",
    }
    return authorization.Grant(
        token=token,
        expires_at=None,
        client=OAuthClientInformationFull(client_id="robot"),
        server=authorization.AuthorizationServer.model_validate(
            {"metadata": metadata, "resource": f"{resource.url}/mcp"}
        ),
    )


@asynccontextmanager
async def connected(
    server: ToolServerConfig, book: TokenBook | None = None
) -> AsyncIterator[McpTools]:
    sign_ins = SignIns(book or TokenBook(MemoryVault()), Site())
    async with McpTools([server], settings=QUICK, sign_ins=sign_ins) as tools:
        await tools.wait_for_first_attempt()
        yield tools


async def call(tools: McpTools, name: str = "look") -> str:
    tool = await tool_of(tools, f"pages__{name}")
    return (await tools.call(tool, {"page": "a"}, unheard)).text


async def test_a_token_is_got_used_renewed_and_kept() -> None:
    book = TokenBook(MemoryVault())
    async with guarded(scopes="read") as resource:
        async with connected(config(resource), book) as tools:
            assert await call(tools) == "a: found"
            [asked] = resource.server.forms
            assert asked["scope"] == "read"
            assert asked["resource"] == f"{resource.url}/mcp"
            resource.server.expire()
            assert await call(tools) == "a: found"
            assert len(resource.server.forms) == 2
        async with connected(config(resource), book) as tools:
            assert await call(tools) == "a: found"
        assert len(resource.server.forms) == 2
        assert resource.calls == [("look", "robot")] * 3
        async with connected(config(resource, client_id="other"), book) as tools:
            assert "invalid_client" in reasons(tools)["pages"]


async def test_a_token_that_expires_is_renewed_before_it_is_sent() -> None:
    async with guarded() as resource:
        resource.server.lifetime = 1
        async with connected(config(resource)) as tools:
            assert await call(tools) == "a: found"
        refused = [one for one in resource.seen if one is None]
        assert len(refused) == 1
        assert len(resource.server.forms) > 2


async def test_a_step_up_asks_for_more_scopes_but_not_for_more_than_the_manifest_has() -> None:
    async with guarded(scopes="read", scopes_of={"write": "write"}) as resource:
        async with connected(config(resource)) as tools:
            assert await call(tools, "write") == "a: written"
            assert resource.server.forms[-1]["scope"] == "read write"
            assert await call(tools) == "a: found"
            assert len(resource.server.forms) == 2
        async with connected(config(resource, scopes=("read",))) as tools:
            with pytest.raises(Exception, match=r"scopes write, which auth\.scopes lacks"):
                await call(tools, "write")


KEYS: dict[str, Callable[[], Any]] = {
    "rsa": functools.partial(rsa.generate_private_key, 65537, 2048),
    "ec": functools.partial(ec.generate_private_key, ec.SECP256R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", KEYS)
async def test_a_private_key_signs_and_may_be_rotated(kind: str) -> None:
    key = KEYS[kind]()

    def pem() -> str:
        encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return str(encoded.decode())

    async with guarded() as resource:
        resource.server.clients["robot"] = key.public_key()
        async with connected(config(resource, client_secret=None, private_key=pem)) as tools:
            assert await call(tools) == "a: found"
            key = KEYS[kind]()
            resource.server.clients["robot"] = key.public_key()
            resource.server.expire()
            assert await call(tools) == "a: found"


async def test_the_manifest_names_the_issuer_of_a_server_without_metadata() -> None:
    async with guarded() as resource:
        for path in (RESOURCE_METADATA, f"{RESOURCE_METADATA}/mcp"):
            resource.answers[path] = lambda: Response(status_code=404)
        async with connected(config(resource)) as tools:
            assert await call(tools) == "a: found"


async def test_a_call_succeeds_whose_connection_ends_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supervised = ServerSupervisor.call

    async def last_call(self: ServerSupervisor, *args: Any) -> CallOutput:
        output = await supervised(self, *args)
        await self.close()
        return output

    monkeypatch.setattr(ServerSupervisor, "call", last_call)
    book = TokenBook(MemoryVault())
    async with guarded() as resource:
        url = f"{resource.url}/mcp"
        resource.server.tokens["t"] = Token("robot", "ada", "", url, math.inf)
        await book.save(grant_key(url, "ada"), grant_of(resource, OAuthToken(access_token="t")))
        server = config(resource, is_personal=True)
        signed_in = SignIns(book, Site(sole_person="ada"))
        async with McpTools([server], settings=QUICK, sign_ins=signed_in) as tools:
            await tools.call(await tool_of(tools, "pages__sign_in"), {}, unheard)
            assert await call(tools) == "a: found"


class RacedBook(TokenBook):
    """Has another token as soon as the first one was read: another replica has refreshed it."""

    async def load(self, key: str, kind: type[Any]) -> Any:
        found = await super().load(key, kind)
        if found and found.token.access_token == "old":
            token = OAuthToken(access_token="new", refresh_token="next")
            await self.save(key, found.model_copy(update={"token": token, "expires_at": None}))
        return found


async def test_a_refresh_token_that_another_replica_has_used_signs_nobody_out() -> None:
    async with guarded() as resource:
        client = OAuthClient(config(resource, is_personal=True))
        book = RacedBook(MemoryVault())
        token = OAuthToken(access_token="old", refresh_token="used")
        old = grant_of(resource, token).model_copy(update={"expires_at": 1.0})
        await book.save(grant_key(client.server_url, "ada"), old)
        tokens, sent = PersonTokens(client, book, "ada"), list[str]()

        async def send(request: httpx2.Request) -> httpx2.Response:
            sent.append(request.headers["authorization"])
            return httpx2.Response(200)

        await tokens.authorize(httpx2.Request("POST", client.server_url), send)
        assert sent == ["Bearer new"]
        assert resource.server.forms[-1]["refresh_token"] == "used"
        await client.aclose()


def big() -> Response:
    return JSONResponse({"issuer": "x" * 5_000_000})


def elsewhere() -> Response:
    return RedirectResponse("http://127.0.0.1:1/", 307)


def nonsense() -> Response:
    return Response(b"<html>\xff", media_type="application/json")


Change = Callable[[Guarded], object]
OTHER_AUDIENCE = jwt.encode({"aud": "https://other.example/mcp"}, "k" * 32)
HOSTILE: dict[str, tuple[Change, str]] = {
    "big metadata": (lambda r: r.server.answers.update({METADATA: big}), "more than 65536 bytes"),
    "nonsense as metadata": (
        lambda r: r.server.answers.update({METADATA: nonsense}),
        "no metadata",
    ),
    "metadata elsewhere": (lambda r: r.server.answers.update({METADATA: elsewhere}), "no metadata"),
    "another issuer": (
        lambda r: r.server.metadata.update(issuer="https://evil.example"),
        "of another issuer, https://evil.example",
    ),
    "another server": (
        lambda r: r.metadata.update(authorization_servers=["https://evil.example"]),
        "names the authorization server https://evil.example, not http://127",
    ),
    "another resource": (
        lambda r: r.metadata.update(resource="https://evil.example/mcp"),
        "of another resource, https://evil.example/mcp",
    ),
    "a private address": (
        lambda r: r.server.metadata.update(token_endpoint="https://169.254.169.254/token"),
        "agents may not connect to its address",
    ),
    "a token endpoint without TLS": (
        lambda r: r.server.metadata.update(token_endpoint="http://as.example/token"),
        "OAuth needs https, unlike http://as.example/token",
    ),
    "a token elsewhere": (lambda r: r.server.answers.update({"/token": elsewhere}), "HTTP 307"),
    "nonsense as token": (
        lambda r: r.server.answers.update({"/token": nonsense}),
        "without a bearer token",
    ),
    "another kind of token": (
        lambda r: r.server.answer.update(token_type="DPoP"),
        "without a bearer token",
    ),
    "another audience": (
        lambda r: r.server.answer.update(access_token=OTHER_AUDIENCE),
        "a token for https://other.example/mcp",
    ),
    "a refusal that quotes the secret": (
        lambda r: r.server.answers.update(
            {"/token": lambda: JSONResponse({"error": f"bad {SECRET}"}, 400)}
        ),
        r"refuses a token: bad \[redacted\]",
    ),
}


async def test_a_token_may_be_said_to_last_for_ever() -> None:
    async with guarded() as resource:
        resource.server.answer.update(expires_in=10**400)
        async with connected(config(resource)) as tools:
            assert await tool_of(tools, "pages__look")


@pytest.mark.parametrize("case", HOSTILE)
async def test_what_is_wrong_is_named_and_gets_no_secret(case: str) -> None:
    change, reason = HOSTILE[case]
    SECRETS.remember(SECRET)
    async with guarded() as resource:
        change(resource)
        async with connected(config(resource)) as tools:
            shown = reasons(tools)["pages"]
            assert re.search(reason, shown)
            assert SECRET not in shown
        assert resource.seen.count(None) == len(resource.seen)
