"""Tool servers with `as: person`: each person signs in, and calls with a token of their own.

A person begins with the link of a call's question or with `diptych login`. Any replica can take the
callback: once, and for the person who began.
"""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

import httpx2
import mcp_types
from mcp.client.auth.exceptions import OAuthFlowError
from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import validate_authorization_response_iss
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import BaseModel

from diptych.core.catalog import Tool, Unavailable
from diptych.core.errors import SignInRefused, StoreError, ToolError
from diptych.core.events import InputRequest
from diptych.core.messages import CallOutput, JSONObject
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import CALLBACK_PATH, CLIENT_PATH, SIGN_IN, START_PATH, ConnectionSettings
from diptych.mcp.oauth import (
    AuthorizationServer,
    Grant,
    OAuthClient,
    is_insufficient_scope,
    with_more_scopes,
)
from diptych.mcp.supervisor import ServerSupervisor, wait_for
from diptych.mcp.tokens import ServerTokens, TokenBook, grant_key
from diptych.mcp.tool_listing import ToolListing
from diptych.mcp.transport import AuthorizationFailed
from diptych.net.outgoing import is_loopback_name
from diptych.ports import CallContext, InputAnswer

PENDING_SECONDS = 600.0
IDLE_SECONDS = 300.0  # for which a person's connection stays open
MAX_SIGN_INS = 2  # of one call: the second is a step-up
MAX_LISTING_BYTES = 2**20
NOBODY_YET = "nobody has signed in yet"


class PendingSignIn(BaseModel):
    """A sign-in under way, stored for the replica that gets the callback."""

    state: str
    tool_server: str
    person: str
    url: str
    redirect_uri: str
    verifier: str
    client: OAuthClientInformationFull
    server: AuthorizationServer


class _Listing(BaseModel):
    tools: list[mcp_types.Tool]
    reads_resources: bool


class PersonTokens(ServerTokens):
    """The tokens of one person, who has to sign in at `needed` if it is set."""

    needed: AuthorizationServer | None = None

    async def _current(self) -> str | None:
        self._grant = None  # another replica may have renewed or deleted it
        return await super()._current()

    async def _renew(self, refusal: httpx2.Response, prior: Grant | None) -> Grant:
        server = await self.client.discover(refusal)
        if prior and prior.server.issuer == server.issuer:
            may_refresh = not is_insufficient_scope(refusal)
            if may_refresh and (renewed := await self._refresh(prior)):
                return renewed
            server = with_more_scopes(server, prior, refusal)
        self.needed = server
        raise AuthorizationFailed("the person has to sign in")

    async def _refresh(self, grant: Grant) -> Grant | None:
        if renewed := await self.client.refreshed(grant):
            return await self._save(renewed)
        newest = await self._load()  # another replica may have been faster
        used = grant.token.access_token
        return newest if newest and newest.token.access_token != used else None

    async def _save(self, grant: Grant) -> Grant:
        self.needed = None
        return await super()._save(grant)


@dataclass
class Site:
    """The agent's address, empty if browsers cannot reach it; and the person of all its runs, if it
    is on loopback and has no access control.
    """

    url: str = ""
    sole_person: str = ""

    @property
    def redirect_uri(self) -> str:
        return f"{self.url}{CALLBACK_PATH}"

    @property
    def client_id_url(self) -> str | None:
        """The URL of the client id metadata document, which must be public."""
        return f"{self.url}{CLIENT_PATH}" if self.url.startswith("https://") else None


@dataclass
class _Person:
    """A person's connection; `uses` are the calls on it now."""

    tokens: PersonTokens
    supervisor: ServerSupervisor
    uses: int = 0
    used_at: float = field(default_factory=time.monotonic)


class PersonalServer(ServerSupervisor):
    """A tool server with a connection for each person, open while it is used.

    The tools are those last listed to somebody; other replicas read them in the store.
    """

    def __init__(
        self,
        server: ToolServerConfig,
        settings: ConnectionSettings,
        book: TokenBook,
        site: Site,
        client: OAuthClient,
    ) -> None:
        super().__init__(server, settings)
        self.oauth = client
        self._last_reason = NOBODY_YET
        self._book = book
        self._site = site
        self._people: dict[str, _Person] = {}
        self._listing_key = f"tools:{_digest(self.oauth.server_url)}"

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        tools, unavailable = super().snapshot()
        return (tools if self.has_listed else (_sign_in_tool(self.server.name),)), unavailable

    async def call(self, tool: Tool, arguments: JSONObject, context: CallContext) -> CallOutput:
        """Call a tool as the person of the run, who is asked to sign in if necessary."""
        name = self.server.name
        person = context.person or self._site.sole_person
        if not person:
            text = f"{name} needs the sign-in of a person, and this agent has verified none"
            raise ToolError("refused", text)
        if context.resumed and context.resumed.state == {SIGN_IN: name}:
            _check_answer(name, context.resumed.answer)
            context = replace(context, resumed=None)
        for asked in range(MAX_SIGN_INS + 1):
            async with self._as(person) as own:
                try:
                    count = await self._adopt(own)
                    if tool != _sign_in_tool(name):
                        return await own.supervisor.call(tool, arguments, context)
                    text = f"{name} has {count} tools, which can be called from the next message on"
                    return CallOutput(f"Signed in. {text}.")
                except ToolError as error:
                    if own.tokens.needed is None or error.kind != "unavailable":
                        raise
                    needed = own.tokens.needed
            if asked < MAX_SIGN_INS:
                await self._ask(person, needed, context)
        raise ToolError("unavailable", f"tool server {name}: it refuses each sign-in")

    async def close(self) -> None:
        people = [self._people.pop(person) for person in tuple(self._people)]
        await asyncio.gather(super().close(), *(own.supervisor.close() for own in people))

    async def is_signed_in(self, person: str) -> bool:
        """Whether there is a token of a person. Raises `StoreError`."""
        grant = await self._book.load(self._grant_key(person), Grant)
        return grant is not None and self.oauth.trusts(grant)

    async def forget(self, person: str) -> None:
        """Delete a person's token. Raises `StoreError`."""
        await self._book.take(self._grant_key(person), Grant)
        if own := self._people.pop(person, None):
            await own.supervisor.close()

    async def begin(self, person: str, redirect_uri: str) -> PendingSignIn | None:
        """Begin a person's sign-in; None if the server takes their token.

        Raises `SignInRefused`.
        """
        async with self._as(person) as own:
            try:
                await self._adopt(own)
            except ToolError as error:
                if own.tokens.needed is None:
                    raise SignInRefused(error.message) from error
                needed = own.tokens.needed
            else:
                return None
        return await self._begin(person, needed, redirect_uri)

    async def finish(self, pending: PendingSignIn, code: str, iss: str | None) -> None:
        """Exchange a code for the token of the person who began. Raises `SignInRefused`."""
        try:
            validate_authorization_response_iss(iss, pending.server.metadata)
        except OAuthFlowError:
            text = "the callback is from another authorization server (iss)"
            raise SignInRefused(text) from None
        data = {
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
        }
        try:
            grant = await self.oauth.redeem(pending.server, pending.client, data)
            await self._book.save(self._grant_key(pending.person), grant)
        except (AuthorizationFailed, StoreError) as error:
            with suppress(StoreError):  # the authorization server may have forgotten the client
                key = _client_key(pending.server.issuer, pending.redirect_uri)
                await self._book.take(key, OAuthClientInformationFull)
            raise SignInRefused(str(error)) from error
        async with self._as(pending.person) as own:  # its tools may not be known yet
            own.tokens.needed = None
            with suppress(ToolError):
                await self._adopt(own)

    async def _supervise(self) -> None:
        """Read the tools that other replicas have listed; close idle connections."""
        while True:
            with suppress(StoreError):
                if listing := await self._book.load(self._listing_key, _Listing):
                    self._take_listing(listing)
            self.first_attempt.set()
            for person, own in tuple(self._people.items()):
                if not own.uses and time.monotonic() - own.used_at > IDLE_SECONDS:
                    del self._people[person]
                    await own.supervisor.close()
            await wait_for(self._reconnect, self._settings.refresh_interval)
            self._reconnect.clear()

    @asynccontextmanager
    async def _as(self, person: str) -> AsyncIterator[_Person]:
        """Use a person's connection. One that lacks a token is closed after its last use."""
        own = self._people.get(person)
        if own is None:
            tokens = PersonTokens(self.oauth, self._book, person)
            supervisor = ServerSupervisor(self.server, self._settings, tokens.authorize)
            own = self._people[person] = _Person(tokens, supervisor)
            supervisor.start()
        own.uses += 1
        try:
            yield own
        finally:
            own.uses -= 1
            own.used_at = time.monotonic()
            if own.tokens.needed and not own.uses and self._people.get(person) is own:
                del self._people[person]
                await own.supervisor.close()

    async def _adopt(self, own: _Person) -> int:
        """Offer the tools that the server lists to a person, here and at other replicas.

        Returns their number. Raises `ToolError` if there is no connection.
        """
        connection = await own.supervisor.open_connection()
        listing = _Listing(tools=connection.tools, reads_resources=connection.reads_resources)
        before = self.tools if self.has_listed else None
        self._take_listing(listing)
        if self.tools != before and len(listing.model_dump_json()) <= MAX_LISTING_BYTES:
            with suppress(StoreError):
                await self._book.save(self._listing_key, listing)
        return len(connection.tools)

    def _take_listing(self, listing: _Listing) -> None:
        self._set_tools(listing.tools, ToolListing(), reads_resources=listing.reads_resources)
        self._last_reason = None

    async def _ask(self, person: str, needed: AuthorizationServer, context: CallContext) -> None:
        """Ask the person to sign in. Raises `ToolError` unless they have."""
        name, url = self.server.name, ""
        message = f"Sign in at {needed.issuer}, so that {name} can be used for you."
        if self._site.url:
            try:
                pending = await self._begin(person, needed, self._site.redirect_uri)
            except SignInRefused as error:
                raise ToolError("unavailable", f"tool server {name}: {error}") from error
            url = f"{self._site.url}{START_PATH}?{urlencode({'state': pending.state})}"
        else:
            message += f" Run `diptych login {name}`."
        request = InputRequest("sign_in", message, url=url)
        _check_answer(name, await context.ask(request, {SIGN_IN: name}))

    async def _begin(
        self, person: str, needed: AuthorizationServer, redirect_uri: str
    ) -> PendingSignIn:
        metadata = needed.metadata
        endpoint = httpx2.URL(str(metadata.authorization_endpoint))
        methods = metadata.code_challenge_methods_supported
        if endpoint.scheme != "https" and not is_loopback_name(endpoint.host):
            raise SignInRefused(f"{needed.issuer} signs people in without https")
        if methods is not None and "S256" not in methods:
            raise SignInRefused(f"{needed.issuer} does not support PKCE with S256")
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        try:
            client = await self._registered_client(needed, redirect_uri)
        except AuthorizationFailed as error:
            raise SignInRefused(error.reason) from error
        asked = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": pkce.code_challenge,
            "code_challenge_method": "S256",
            "resource": needed.resource,
        }
        if needed.scopes:
            asked["scope"] = needed.scopes
            if "offline_access" in needed.scopes.split():
                asked["prompt"] = "consent"  # OpenID Connect Core 1.0, section 11
        pending = PendingSignIn(
            state=state,
            tool_server=self.server.name,
            person=person,
            url=str(endpoint.copy_merge_params(asked)),
            redirect_uri=redirect_uri,
            verifier=pkce.code_verifier,
            client=client,
            server=needed,
        )
        try:
            await self._book.save(pending_key(state), pending, PENDING_SECONDS)
        except StoreError as error:
            raise SignInRefused(str(error)) from error
        return pending

    async def _registered_client(
        self, server: AuthorizationServer, redirect_uri: str
    ) -> OAuthClientInformationFull:
        """Return the client to sign people in with; one that is registered is kept."""
        if self.oauth.auth.client_id:
            return self.oauth.given_client(server)
        key = _client_key(server.issuer, redirect_uri)
        try:
            if known := await self._book.load(key, OAuthClientInformationFull):
                return known
            found = await self.oauth.new_client(server, self._site.client_id_url, redirect_uri)
            await self._book.save(key, found)
        except StoreError as error:
            raise AuthorizationFailed(str(error)) from error
        return found

    def _grant_key(self, person: str) -> str:
        return grant_key(self.oauth.server_url, person)


class SignIns:
    """An agent's tool servers with `auth`; people sign in at `servers`."""

    def __init__(self, book: TokenBook, site: Site) -> None:
        self.book = book
        self.site = site
        self.servers: dict[str, PersonalServer] = {}
        self._clients: list[OAuthClient] = []

    def supervisor(
        self, server: ToolServerConfig, settings: ConnectionSettings
    ) -> ServerSupervisor:
        """Return the supervisor of a server with `auth`."""
        client = OAuthClient(server)
        self._clients.append(client)
        if client.auth.is_personal:
            found = PersonalServer(server, settings, self.book, self.site, client)
            self.servers[server.name] = found
            return found
        return ServerSupervisor(server, settings, ServerTokens(client, self.book).authorize)

    async def aclose(self) -> None:
        """Close the connections to authorization servers."""
        for client in self._clients:
            await client.aclose()

    async def pending(self, state: str) -> PendingSignIn | None:
        """Return a sign-in under way. Raises `StoreError`."""
        return await self.book.load(pending_key(state), PendingSignIn)

    async def take(self, state: str) -> PendingSignIn | None:
        """Return a sign-in under way, once. Raises `StoreError`."""
        return await self.book.take(pending_key(state), PendingSignIn)


def pending_key(state: str) -> str:
    """Return the key of a sign-in under way."""
    return f"pending:{_digest(state)}"


def _client_key(issuer: str, redirect_uri: str) -> str:
    return f"client:{_digest(json.dumps([issuer, redirect_uri]))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_answer(name: str, answer: InputAnswer) -> None:
    if answer.action != "accept":
        text = "declined to sign in" if answer.action == "decline" else "did not sign in in time"
        raise ToolError("refused", f"the person {text} at tool server {name}")


def _sign_in_tool(server: str) -> Tool:
    description = f"Ask the user to sign in to {server}. Its tools can be called afterwards."
    schema: JSONObject = {"type": "object", "properties": {}}
    return Tool(server, SIGN_IN, description, schema, read_only=True, idempotent=True)
