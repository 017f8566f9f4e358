"""OAuth tokens for one MCP server (MCP authorization 2025-11-25 and 2026-07-28).

The SDK's providers hold a lock while a tool runs, and wait for a person in the process that asked.
So we use only their parts: models, discovery URLs, checks.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mcp.client.auth.exceptions import OAuthRegistrationError
from mcp.client.auth.extensions.client_credentials import SignedJWTParameters
from mcp.client.auth.oauth2 import OAuthContext, check_registration_usable
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    create_client_info_from_metadata_url,
    create_client_registration_request,
    create_oauth_metadata_request,
    extract_field_from_www_auth,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    handle_auth_metadata_response,
    handle_protected_resource_response,
    handle_registration_response,
    issuers_match,
    should_use_client_metadata_url,
    union_scopes,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
    TokenEndpointAuthMethod,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyHttpUrl, AnyUrl, BaseModel, ValidationError

from diptych.core.text import one_line
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp.aiohttp_transport import AiohttpTransport
from diptych.mcp.transport import AuthorizationFailed, connect_reason, tls_context
from diptych.net.outgoing import OutgoingPolicy, is_loopback_name
from diptych.net.received import TooMuchReceived, read_bounded
from diptych.net.redaction import SECRETS

MAX_BYTES = 64 * 1024  # of a response of an authorization server
TIMEOUT_SECONDS = 10.0  # for one request to it
EXPIRY_MARGIN_SECONDS = 5.0
MAX_LIFETIME_SECONDS = 10**9  # a server may name any whole number
JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
CLIENT_NAME = "Diptych"


class AuthorizationServer(BaseModel):
    """The authorization server of a resource, as discovered. `scopes` are those to ask for."""

    metadata: OAuthMetadata
    resource: str
    scopes: str | None = None

    @property
    def issuer(self) -> str:
        return str(self.metadata.issuer)


class Grant(BaseModel):
    """A token, with all that is needed to refresh it. `expires_at` is in Unix seconds."""

    token: OAuthToken
    expires_at: float | None
    client: OAuthClientInformationFull
    server: AuthorizationServer

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and time.time() > self.expires_at - EXPIRY_MARGIN_SECONDS

    def redact_secrets(self) -> None:
        """Redact its secrets from now on."""
        for secret in (
            self.token.access_token,
            self.token.refresh_token,
            self.client.client_secret,
        ):
            if secret:
                SECRETS.remember(secret)


class OAuthClient:
    """Gets tokens for one MCP server. Methods raise `AuthorizationFailed`.

    Requests go to https URLs and loopback only, within the outgoing policy; no redirect is
    followed.
    """

    def __init__(self, server: ToolServerConfig) -> None:
        if server.auth is None or server.url is None:
            raise ValueError(f"tool server {server.name} has no auth")
        self.auth = server.auth
        self.server_url = server.url
        self._resource = resource_url_from_server_url(server.url)
        named = filter(None, (server.url, server.auth.issuer))
        self._transport = AiohttpTransport(OutgoingPolicy(named), tls_context())

    async def aclose(self) -> None:
        await self._transport.aclose()

    def trusts(self, grant: Grant) -> bool:
        """Whether a stored grant still matches the manifest's client and issuer."""
        auth = self.auth
        if auth.issuer and not issuers_match(grant.server.issuer, auth.issuer):
            return False
        return not auth.client_id or grant.client.client_id == auth.client_id

    async def discover(self, challenge: httpx2.Response) -> AuthorizationServer:
        """Find the authorization server (RFC 9728, RFC 8414, OpenID Connect Discovery).

        Without metadata, the endpoints are MCP 2025-03-26's, at the MCP server's own origin.
        """
        about = await self._resource_metadata(challenge)
        named = self._named_server(about) if about else self.auth.issuer
        origin = _origin(self.server_url)
        metadata = await self._server_metadata(named)
        if metadata is None:
            if named:
                raise AuthorizationFailed(f"no metadata of the authorization server {named}")
            metadata = OAuthMetadata(
                issuer=AnyHttpUrl(origin),
                authorization_endpoint=AnyHttpUrl(f"{origin}/authorize"),
                token_endpoint=AnyHttpUrl(f"{origin}/token"),
                registration_endpoint=AnyHttpUrl(f"{origin}/register"),
            )
        expected = named or origin
        if not issuers_match(str(metadata.issuer), expected):
            shown = one_line(str(metadata.issuer), 100)
            raise AuthorizationFailed(f"the metadata of {expected} is of another issuer, {shown}")
        return AuthorizationServer(
            metadata=metadata,
            resource=str(about.resource) if about else self._resource,
            scopes=self._scopes(challenge, about, metadata),
        )

    async def client_credentials(self, server: AuthorizationServer) -> Grant:
        """Get the agent's own token (RFC 6749, section 4.4)."""
        data = {"grant_type": "client_credentials"}
        if self.auth.private_key:
            data |= {
                "client_assertion": await self._assertion(server.issuer),
                "client_assertion_type": JWT_BEARER,
            }
        return await self._token(server, None, data, scope=server.scopes)

    async def refreshed(self, grant: Grant) -> Grant | None:
        """Refresh a grant; None if the authorization server refuses that."""
        if grant.token.refresh_token is None:
            return None
        data = {"grant_type": "refresh_token", "refresh_token": grant.token.refresh_token}
        try:
            renewed = await self._token(grant.server, grant.client, data)
        except _Refused:
            return None
        kept = renewed.token
        kept.scope = kept.scope or grant.token.scope
        kept.refresh_token = kept.refresh_token or grant.token.refresh_token
        return renewed

    async def redeem(
        self,
        server: AuthorizationServer,
        client: OAuthClientInformationFull,
        data: Mapping[str, str],
    ) -> Grant:
        """Exchange the authorization code in `data` for a token."""
        grant = await self._token(server, client, {"grant_type": "authorization_code", **data})
        grant.token.scope = grant.token.scope or server.scopes
        return grant

    async def new_client(
        self, server: AuthorizationServer, metadata_url: str | None, redirect_uri: str
    ) -> OAuthClientInformationFull:
        """Return a client for signing people in: by its metadata document, or registered."""
        redirects = [AnyUrl(redirect_uri)]
        if metadata_url and should_use_client_metadata_url(server.metadata, metadata_url):
            return create_client_info_from_metadata_url(metadata_url, redirects)
        if server.metadata.registration_endpoint is None:
            raise AuthorizationFailed(
                f"the authorization server {server.issuer} registers no clients; give auth.clientId"
            )
        is_native = is_loopback_name(urlsplit(redirect_uri).hostname or "")
        wanted = OAuthClientMetadata(
            redirect_uris=redirects,
            client_name=CLIENT_NAME,
            scope=server.scopes,
            application_type="native" if is_native else "web",
            token_endpoint_auth_method=_public_method(server.metadata),
        )
        request = create_client_registration_request(server.metadata, wanted, server.issuer)
        try:
            client = await handle_registration_response(await self._send(request))
            check_registration_usable(client)
        except OAuthRegistrationError as error:
            raise AuthorizationFailed(
                f"the authorization server {server.issuer} does not register this client; "
                "give auth.clientId"
            ) from error
        return client

    def given_client(self, server: AuthorizationServer) -> OAuthClientInformationFull:
        """Return the manifest's client, with its secret as it is now."""
        secret = self._read("clientSecret") if self.auth.client_secret else None
        supported = server.metadata.token_endpoint_auth_methods_supported or ()
        method = "client_secret_basic"
        if self.auth.private_key:
            method = "private_key_jwt"
        elif secret is None:
            method = "none"
        elif method not in supported and "client_secret_post" in supported:
            method = "client_secret_post"
        return OAuthClientInformationFull(
            client_id=self.auth.client_id, client_secret=secret, token_endpoint_auth_method=method
        )

    def _read(self, field: str) -> str:
        read = self.auth.client_secret if field == "clientSecret" else self.auth.private_key
        value = read() if read else None
        if not value:
            raise AuthorizationFailed(f"auth.{field} has no value yet")
        return value

    async def _assertion(self, issuer: str) -> str:
        pem, client_id = self._read("privateKey"), self.auth.client_id
        try:
            algorithm = _algorithm(pem)
            signed = SignedJWTParameters(
                issuer=client_id, subject=client_id, signing_key=pem, signing_algorithm=algorithm
            )
            return await signed.create_assertion_provider()(issuer)
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise AuthorizationFailed("auth.privateKey is not an RSA, EC or Ed25519 key") from error

    async def _resource_metadata(
        self, challenge: httpx2.Response
    ) -> ProtectedResourceMetadata | None:
        given = extract_resource_metadata_from_www_auth(challenge)
        failed = None
        for url in build_protected_resource_metadata_discovery_urls(given, self.server_url):
            response = await self._send(create_oauth_metadata_request(url))
            about = await handle_protected_resource_response(response)
            if about is None:
                is_failure = response.is_server_error or response.status_code == 429  # noqa: PLR2004
                failed = response.status_code if is_failure else failed
                continue
            resource = str(about.resource)
            if not check_resource_allowed(self._resource, resource):
                shown = one_line(resource, 100)
                raise AuthorizationFailed(f"its metadata is of another resource, {shown}")
            return about
        if failed is not None:
            raise AuthorizationFailed(f"its protected resource metadata: HTTP {failed}")
        return None

    def _named_server(self, about: ProtectedResourceMetadata) -> str:
        named = [str(url) for url in about.authorization_servers]
        issuer = self.auth.issuer
        for each in named:
            if issuer is None or issuers_match(each, issuer):
                return each
        shown = one_line(", ".join(named), 200)
        raise AuthorizationFailed(f"it names the authorization server {shown}, not {issuer}")

    async def _server_metadata(self, issuer: str | None) -> OAuthMetadata | None:
        for url in build_oauth_authorization_server_metadata_discovery_urls(
            issuer, self.server_url
        ):
            response = await self._send(create_oauth_metadata_request(url))
            may_continue, metadata = await handle_auth_metadata_response(response)
            if metadata is not None:
                return metadata
            if not may_continue:
                raise AuthorizationFailed(
                    f"the metadata of its authorization server: HTTP {response.status_code}"
                )
        return None

    def _scopes(
        self,
        challenge: httpx2.Response,
        about: ProtectedResourceMetadata | None,
        metadata: OAuthMetadata,
    ) -> str | None:
        wanted = extract_scope_from_www_auth(challenge)
        if not self.auth.scopes:
            grants = ["authorization_code", "refresh_token"] if self.auth.is_personal else []
            return get_client_metadata_scopes(wanted, about, metadata, grants)
        missing = set((wanted or "").split()) - set(self.auth.scopes)
        if missing and is_insufficient_scope(challenge):
            shown = one_line(" ".join(sorted(missing)), 100)
            raise AuthorizationFailed(f"it needs the scopes {shown}, which auth.scopes lacks")
        return " ".join(self.auth.scopes)

    async def _token(
        self,
        server: AuthorizationServer,
        client: OAuthClientInformationFull | None,
        data: dict[str, str],
        scope: str | None = None,
    ) -> Grant:
        """Send a token request. Raises `_Refused` for an OAuth error."""
        if client is None or self.auth.client_id:
            client = self.given_client(server)  # its secret may have been rotated
        data |= {"resource": server.resource, "client_id": client.client_id}
        if scope:
            data["scope"] = scope
        context = OAuthContext(
            self.server_url,
            OAuthClientMetadata(redirect_uris=None),
            storage=cast("Any", None),  # unused by the one method that is
            redirect_handler=None,
            callback_handler=None,
            client_info=client,
        )
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        data, headers = context.prepare_token_auth(data, headers)
        endpoint = str(server.metadata.token_endpoint)
        sent_at = time.time()
        response = await self._send(httpx2.Request("POST", endpoint, data=data, headers=headers))
        if response.status_code not in (200, 201):
            raise _refusal(server.issuer, response)
        try:
            token = OAuthToken.model_validate_json(response.content)
        except ValidationError:
            raise AuthorizationFailed(
                f"the authorization server {server.issuer} answers without a bearer token"
            ) from None
        token.scope = token.scope or scope
        seconds = token.expires_in
        expires_at = None if seconds is None else sent_at + min(seconds, MAX_LIFETIME_SECONDS)
        grant = Grant(token=token, expires_at=expires_at, client=client, server=server)
        grant.redact_secrets()
        _check_audience(token.access_token, server)
        return grant

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to an authorization server, or for metadata; return the read response."""
        url = request.url
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback_name(url.host)):
            raise AuthorizationFailed(f"OAuth needs https, unlike {_shown(url)}")
        request.headers["accept"] = "application/json"
        request.headers["accept-encoding"] = "identity"
        request.extensions["timeout"] = {"connect": TIMEOUT_SECONDS, "read": TIMEOUT_SECONDS}
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                response = await self._transport.handle_async_request(request)
                try:
                    body = await read_bounded(_chunks(response), MAX_BYTES)
                finally:
                    await response.aclose()
        except TooMuchReceived as error:
            raise AuthorizationFailed(f"{_shown(url)}: {error.reason}") from error
        except (httpx2.TransportError, TimeoutError) as error:
            raise AuthorizationFailed(f"{_shown(url)}: {connect_reason(error)}") from error
        return httpx2.Response(response.status_code, content=body, request=request)


class _Refused(AuthorizationFailed):
    """The authorization server answers a token request with an OAuth error."""


def is_refused(response: httpx2.Response) -> bool:
    """Whether a resource wants another token; then no tool has run."""
    return response.status_code == httpx2.codes.UNAUTHORIZED or is_insufficient_scope(response)


def is_insufficient_scope(response: httpx2.Response) -> bool:
    """Whether a resource wants a token with more scopes (RFC 6750, section 3.1)."""
    return response.status_code == httpx2.codes.FORBIDDEN and (
        extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def with_more_scopes(
    server: AuthorizationServer, prior: Grant, refusal: httpx2.Response
) -> AuthorizationServer:
    """Add the scopes of an earlier grant, so that a new one loses none.

    Raises `AuthorizationFailed` if the refused grant had all that are wanted.
    """
    had, wanted = prior.token.scope or "", server.scopes or ""
    if is_insufficient_scope(refusal) and set(wanted.split()) <= set(had.split()):
        raise AuthorizationFailed("it refuses a token with the scopes that it asks for")
    return server.model_copy(update={"scopes": union_scopes(had, wanted) or None})


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _shown(url: httpx2.URL) -> str:
    """Return a URL without the parts that may hold a secret."""
    return str(url.copy_with(userinfo=b"", query=None, fragment=None))


async def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    async for chunk in cast("httpx2.AsyncByteStream", response.stream):
        yield chunk


def _public_method(metadata: OAuthMetadata) -> TokenEndpointAuthMethod | None:
    """Return the method to register with: that of a public client, if the server has it."""
    supported = metadata.token_endpoint_auth_methods_supported or ()
    methods: tuple[TokenEndpointAuthMethod, ...]
    methods = ("none", "client_secret_basic", "client_secret_post")
    return next((method for method in methods if method in supported), None)


def _algorithm(pem: str) -> str:
    """Return the algorithm of a private key. Raises `ValueError`."""
    match load_pem_private_key(pem.encode(), None):
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey() as key:
            return {384: "ES384", 521: "ES512"}.get(key.curve.key_size, "ES256")
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
    raise ValueError


def _refusal(issuer: str, response: httpx2.Response) -> AuthorizationFailed:
    """Return the error of an unsuccessful token response, in the server's words (RFC 6749, 5.2)."""
    try:
        found = json.loads(response.content)
        words = [str(found[name]) for name in ("error", "error_description") if name in found]
    except (ValueError, TypeError, RecursionError):
        words = []
    kind = _Refused if words and response.status_code < 500 else AuthorizationFailed  # noqa: PLR2004
    said = one_line(SECRETS.redact(": ".join(words)), 200) or f"HTTP {response.status_code}"
    return kind(f"the authorization server {issuer} refuses a token: {said}")


def _check_audience(token: str, server: AuthorizationServer) -> None:
    """Refuse a readable token (JWT) whose audiences are URLs, but not of the resource."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        return
    found = claims.get("aud", ())
    audiences = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    urls = [str(one) for one in audiences if "://" in str(one)]
    if urls and not any(check_resource_allowed(server.resource, url) for url in urls):
        shown = one_line(", ".join(urls), 200)
        raise AuthorizationFailed(
            f"the authorization server {server.issuer} gives a token for {shown}, "
            f"not for {server.resource}"
        )
