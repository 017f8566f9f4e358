"""Sign-ins of people at tool servers: `/v1/logins` for `diptych login`, `/oauth/…` for browsers.

Browsers have no token of ours. So a page names the person who began, and a cookie ties the callback
to the browser that went on from it. A browser that does prove its caller must be that person's.
"""

import html
import logging
import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from diptych.access.caller import current_caller
from diptych.access.grants import Right
from diptych.core.codec import Record, event_of
from diptych.core.errors import DiptychError, InvalidRequest, RequestError, SignInRefused
from diptych.core.events import InputAction, InputRequested
from diptych.core.waits import open_waits
from diptych.http.bodies import Body, json_router
from diptych.http.openapi import reply
from diptych.mcp import CALLBACK_PATH, CLIENT_PATH, SIGN_IN, START_PATH
from diptych.net.outgoing import is_loopback_name
from diptych.ports.stores import EventLog
from diptych.runs.inputs import InputReply
from diptych.runs.service import RunService

if TYPE_CHECKING:
    from diptych.mcp.sign_in import PendingSignIn, PersonalServer, SignIns, Site

MAX_WAITING = 1_000  # runs among which those that wait for a sign-in are looked for
COOKIE_SECONDS = 600
_OVER = "This sign-in is over, or somebody else's. Ask the agent again."
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "frame-ancestors 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_logger = logging.getLogger(__name__)


class LoginBody(Body):
    """`POST /v1/logins/{tool_server}`."""

    model_config = ConfigDict(extra="forbid")

    redirect_uri: str = Field(
        max_length=256,
        description="Where the browser brings the code: `http://127.0.0.1:PORT/callback`.",
    )


class CodeBody(Body):
    """`POST /v1/logins/{tool_server}/code`: the parameters of the callback."""

    model_config = ConfigDict(extra="forbid")

    state: str = Field(max_length=256, description="As the callback brings it.")
    code: str = Field(max_length=8192, description="As the callback brings it.")
    iss: str | None = Field(None, max_length=2048, description="As the callback brings it.")


def login_routes(sign_ins: "SignIns | None", runs: RunService, log: EventLog) -> APIRouter:
    """Return the routes of `diptych login`; without sign-ins there are no tool servers."""
    router = json_router()

    @router.get("/v1/logins", **reply("LoginList", "The tool servers, and whether you are."))
    async def list_logins() -> dict[str, Any]:
        """List the tool servers at which people sign in, and whether the caller has."""
        data = []
        if sign_ins:
            person = _person(sign_ins)
            data = [
                _view(server, is_signed_in=await server.is_signed_in(person))
                for server in sign_ins.servers.values()
            ]
        return {"object": "list", "data": data}

    @router.post("/v1/logins/{tool_server}", **reply("Login", "Where to go on, unless signed in."))
    async def begin_login(tool_server: str, body: LoginBody) -> dict[str, Any]:
        """Begin the caller's sign-in; `url` is for their browser."""
        found, server = _server(sign_ins, tool_server)
        uri = urlsplit(body.redirect_uri)
        if uri.scheme != "http" or not is_loopback_name(uri.hostname or "") or uri.query:
            raise InvalidRequest("must be http://127.0.0.1:PORT/callback", param="redirect_uri")
        pending = await server.begin(_person(found), body.redirect_uri)
        return _view(server, is_signed_in=pending is None) | {"url": pending and pending.url}

    @router.post("/v1/logins/{tool_server}/code", **reply("Login", "The caller is signed in.", 409))
    async def finish_login(tool_server: str, body: CodeBody) -> dict[str, Any]:
        """Finish the caller's sign-in; calls that wait for it go on."""
        found, server = _server(sign_ins, tool_server)
        person, pending = _person(found), await found.take(body.state)
        if pending is None or (pending.tool_server, pending.person) != (tool_server, person):
            raise SignInRefused("this sign-in is over, or somebody else's; begin again")
        await server.finish(pending, body.code, body.iss)
        await _answer_calls(runs, log, found.site, pending, "accept")
        return _view(server, is_signed_in=True)

    @router.delete("/v1/logins/{tool_server}", **reply("Login", "The caller is signed out."))
    async def forget_login(tool_server: str) -> dict[str, Any]:
        """Delete the caller's token."""
        found, server = _server(sign_ins, tool_server)
        await server.forget(_person(found))
        return _view(server, is_signed_in=False)

    return router


class SignInPages:
    """The pages that a person's browser sees, and the client id metadata document."""

    def __init__(self, agent: str, sign_ins: "SignIns", runs: RunService, log: EventLog) -> None:
        self._agent = html.escape(agent)
        self._sign_ins = sign_ins
        self._site = sign_ins.site
        self._answer_calls = partial(_answer_calls, runs, log, sign_ins.site)

    def routes(self) -> Sequence[Route]:
        """Return the routes, which need no token."""
        return [
            Route(START_PATH, self._start),
            Route(CALLBACK_PATH, self._callback),
            Route(CLIENT_PATH, self._document),
        ]

    async def _start(self, request: Request) -> Response:
        """Name the person who began; go on only from this page, by the link in it.

        Otherwise a link could skip the page, and take somebody's account for who sent it.
        """
        state = request.query_params.get("state", "")
        pending = await self._sign_ins.pending(state)
        if pending is None or _is_somebody_else(pending):
            return _page(_OVER, 400)
        shown = request.cookies.get(_cookie(state))
        if shown and request.query_params.get("continue") == shown:
            return self._noted(RedirectResponse(pending.url, 302, headers=_HEADERS), state, state)
        proof = secrets.token_urlsafe(16)
        here = f"{self._site.url}{START_PATH}?state={pending.state}&amp;continue={proof}"
        tool, issuer = html.escape(pending.tool_server), html.escape(pending.server.issuer)
        page = _page(
            f"The agent <b>{self._agent}</b> wants to use <b>{tool}</b> for "
            f"<b>{html.escape(pending.person)}</b>. Continue only if that is you, and if you "
            f'asked for it: you sign in at {issuer}.</p><p><a href="{here}">Continue</a>'
        )
        return self._noted(page, state, proof)

    def _noted(self, response: Response, state: str, value: str) -> Response:
        """Add the cookie of a sign-in: what its page's link has, and then its state."""
        response.set_cookie(
            _cookie(state),
            value,
            COOKIE_SECONDS,
            path=f"{urlsplit(self._site.url).path}/oauth",
            secure=self._site.url.startswith("https://"),
            httponly=True,
            samesite="lax",
        )
        return response

    async def _callback(self, request: Request) -> Response:
        """Take the code from the browser that began."""
        given = request.query_params
        state = given.get("state", "")
        if not state or request.cookies.get(_cookie(state)) != state:
            return _page("This browser did not begin a sign-in. Ask the agent again.", 400)
        pending = await self._sign_ins.take(state)
        if pending is None or pending.redirect_uri != self._site.redirect_uri:
            return _page(_OVER, 400)
        if _is_somebody_else(pending):
            return _page(_OVER, 403)
        tool = html.escape(pending.tool_server)
        if not given.get("code"):
            await self._answer_calls(pending, "decline")
            return _page(f"You did not sign in to {tool}. You can close this page.", 400)
        server = self._sign_ins.servers[pending.tool_server]
        try:
            await server.finish(pending, given["code"], given.get("iss"))
        except SignInRefused as error:
            await self._answer_calls(pending, "cancel")
            return _page(f"The sign-in at {tool} failed: {html.escape(str(error))}", 400)
        await self._answer_calls(pending, "accept")
        return _page(f"You are signed in to {tool}. You can close this page; the agent goes on.")

    async def _document(self, _: Request) -> Response:
        """Serve the client id metadata document (draft-ietf-oauth-client-id-metadata-document)."""
        site = self._site
        if site.client_id_url is None:
            return Response(status_code=404)
        return JSONResponse(
            {
                "client_id": site.client_id_url,
                "client_name": "Diptych",
                "client_uri": site.url,
                "redirect_uris": [site.redirect_uri, "http://127.0.0.1/callback"],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        )


async def _answer_calls(
    runs: RunService, log: EventLog, site: "Site", pending: "PendingSignIn", action: InputAction
) -> None:
    """Answer the calls of all runs that wait for this sign-in."""
    given = InputReply(action, subject=pending.person)
    for entry in await runs.waiting_runs(MAX_WAITING):
        try:
            records = await log.read(entry.run_id)
            if _person_of(records[0], site) != pending.person:
                continue
            for wait in open_waits(records, "input"):
                asked = event_of(wait.requested)
                if isinstance(asked, InputRequested) and asked.state == {
                    SIGN_IN: pending.tool_server
                }:
                    await runs.answer(entry.run_id, wait.call_id, given)
        except DiptychError as error:  # the run has ended, or somebody else has answered
            _logger.debug("run %s: not answered after a sign-in: %s", entry.run_id, error)


def _person_of(first: Record, site: "Site") -> str:
    about = first.metadata
    subject = "" if about.get("caller") else str(about.get("subject") or "")
    return subject or site.sole_person


def _server(sign_ins: "SignIns | None", name: str) -> "tuple[SignIns, PersonalServer]":
    if sign_ins is None or name not in sign_ins.servers:
        message = "there is no tool server with this name at which people sign in"
        raise RequestError(message, code="login_not_found")
    return sign_ins, sign_ins.servers[name]


def _person(sign_ins: "SignIns") -> str:
    """Return the caller as a person. Raises `Forbidden`."""
    caller = current_caller()
    caller.require(Right.ASK)
    person = caller.name or sign_ins.site.sole_person
    if not person:
        raise SignInRefused("this agent is open to everybody, so it cannot keep a token for you")
    return person


def _is_somebody_else(pending: "PendingSignIn") -> bool:
    subject = current_caller().subject
    return subject is not None and str(subject) != pending.person


def _view(server: "PersonalServer", *, is_signed_in: bool) -> dict[str, Any]:
    return {"object": "login", "tool_server": server.server.name, "signed_in": is_signed_in}


def _cookie(state: str) -> str:
    """Name the cookie of one sign-in: a browser may have several under way."""
    return f"diptych_sign_in_{state[:8]}"


def _page(text: str, status: int = 200) -> HTMLResponse:
    style = "<style>body{font:1rem/1.5 sans-serif;max-width:34rem;margin:4rem auto}</style>"
    page = f'<!doctype html><meta charset="utf-8"><title>Sign in</title>{style}<p>{text}</p>'
    return HTMLResponse(page, status, headers=_HEADERS)
