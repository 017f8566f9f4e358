"""An OAuth authorization server of our own, and an MCP server that takes its tokens only."""

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

METADATA = "/.well-known/oauth-authorization-server"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource"


@dataclass
class Token:
    client: str
    subject: str
    scope: str
    resource: str
    until: float


@dataclass
class AuthorizationServer:
    """Signs in `person` without asking. `clients` are secrets or public keys by client id.

    `metadata` replaces fields of its metadata (None: leave out), `answers` whole responses by path,
    `answer` fields of its token responses. `paths` are the requests so far.
    """

    url: str = ""
    person: str = "ada"
    lifetime: float = 3600
    clients: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Callable[[], Response]] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    iss: str | None = None
    rotates: bool = True
    tokens: dict[str, Token] = field(default_factory=dict)
    refresh_tokens: dict[str, Token] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route(METADATA, self._metadata),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/register", self._register, methods=["POST"]),
            ]
        )

    def token(self, access: str) -> Token | None:
        """Return a token that was given out and has not expired."""
        found = self.tokens.get(access)
        return found if found and time.time() <= found.until else None

    def expire(self) -> None:
        """End all access tokens."""
        self.tokens.clear()

    async def _metadata(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        if METADATA in self.answers:
            return self.answers[METADATA]()
        found = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [
                "none",
                "client_secret_basic",
                "client_secret_post",
                "private_key_jwt",
            ],
            "authorization_response_iss_parameter_supported": True,
        } | self.metadata
        return JSONResponse({name: value for name, value in found.items() if value is not None})

    async def _authorize(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        asked = dict(request.query_params)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_hex(8)
        self.codes[code] = asked
        back = {"code": code, "state": asked["state"], "iss": self.iss or self.url}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", 302)

    async def _register(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        asked = await request.json()
        client = secrets.token_hex(4)
        self.clients[client] = None
        return JSONResponse(asked | {"client_id": client}, 201)

    async def _token(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        if "/token" in self.answers:
            return self.answers["/token"]()
        form = dict(parse_qsl((await request.body()).decode()))
        self.forms.append(form)
        client = self._client(request, form)
        if client is None:
            return JSONResponse({"error": "invalid_client"}, 401)
        token = self._grant(client, form)
        if token is None:
            return JSONResponse({"error": "invalid_grant", "error_description": "it is used"}, 400)
        access, refresh = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self.tokens[access] = token
        found = {
            "access_token": access,
            "token_type": "bearer",
            "expires_in": round(self.lifetime),
            "scope": token.scope or None,
        }
        if token.subject:
            self.refresh_tokens[refresh] = token
            found["refresh_token"] = refresh
        return JSONResponse(found | self.answer)

    def _grant(self, client: str, form: dict[str, str]) -> Token | None:
        until, scope = time.time() + self.lifetime, form.get("scope", "")
        match form["grant_type"]:
            case "client_credentials":
                return Token(client, "", scope, form["resource"], until)
            case "refresh_token":
                prior = self.refresh_tokens.get(form["refresh_token"])
                if self.rotates:
                    self.refresh_tokens.pop(form["refresh_token"], None)
                return prior and Token(client, prior.subject, prior.scope, prior.resource, until)
            case "authorization_code":
                asked = self.codes.pop(form["code"], None)
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if (
                    asked is None
                    or asked["code_challenge"] != challenge
                    or asked["redirect_uri"] != form["redirect_uri"]
                    or asked["client_id"] != client
                ):
                    return None
                scope = asked.get("scope", "")
                return Token(client, self.person, scope, form["resource"], until)
        return None

    def _client(self, request: Request, form: dict[str, str]) -> str | None:
        """Return the authenticated client, by whichever method."""
        if assertion := form.get("client_assertion"):
            client = jwt.decode(assertion, options={"verify_signature": False})["sub"]
            try:
                jwt.decode(
                    assertion, self.clients[client], ["RS256", "ES256", "EdDSA"], audience=self.url
                )
            except (jwt.PyJWTError, KeyError):
                return None
            return str(client)
        scheme, _, basic = request.headers.get("authorization", "").partition(" ")
        if scheme == "Basic":
            client, _, secret = base64.b64decode(basic).decode().partition(":")
            client, secret = unquote(client), unquote(secret)
        else:
            client, secret = form.get("client_id", ""), form.get("client_secret")
        is_known = client in self.clients or client.startswith("https://")
        return client if is_known and self.clients.get(client) == secret else None


@dataclass
class Guarded:
    """An MCP server that takes the tokens of an authorization server, for its own URL.

    `scopes` are those that every request needs, `scopes_of` those of one tool. `calls` are the
    calls of tools that got through, with the subject (or client) of the token.
    """

    app: ASGIApp
    server: AuthorizationServer
    url: str = ""
    scopes: str = ""
    scopes_of: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Callable[[], Response]] = field(default_factory=dict)
    seen: list[str | None] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        response = await self._refusal(request, scope)
        if isinstance(response, Response):
            await response(scope, receive, send)
            return
        body = response

        async def replay() -> Any:
            nonlocal body
            if body is None:
                return await receive()
            found, body = body, None
            return {"type": "http.request", "body": found, "more_body": False}

        await self.app(scope, replay, send)

    async def _refusal(self, request: Request, scope: Scope) -> Response | bytes:
        path = request.url.path
        if path.startswith(RESOURCE_METADATA):
            if path in self.answers:
                return self.answers[path]()
            found = {
                "resource": f"{self.url}/mcp",
                "authorization_servers": [self.server.url],
            }
            return JSONResponse(found | self.metadata)
        if not path.startswith("/mcp"):
            return Response(status_code=404)
        header = request.headers.get("authorization")
        self.seen.append(header)
        token = self.server.token((header or "").removeprefix("Bearer "))
        place = f'resource_metadata="{self.url}{RESOURCE_METADATA}/mcp"'
        if token is None or token.resource != f"{self.url}/mcp":
            needed = f', scope="{self.scopes}"' if self.scopes else ""
            headers = {"www-authenticate": f"Bearer {place}{needed}"}
            return Response(status_code=401, headers=headers)
        body = await request.body()
        tool = ""
        if b'"tools/call"' in body:
            tool = str(json.loads(body)["params"]["name"])
        needed = f"{self.scopes} {self.scopes_of.get(tool, '')}".split()
        if not set(needed) <= set(token.scope.split()):
            wanted = f'error="insufficient_scope", scope="{" ".join(needed)}"'
            return Response(
                status_code=403, headers={"www-authenticate": f"Bearer {wanted}, {place}"}
            )
        if tool:
            self.calls.append((tool, token.subject or token.client))
        return body


def query_of(url: str) -> dict[str, str]:
    """Return the parameters of a URL."""
    return dict(parse_qsl(urlsplit(url).query))
