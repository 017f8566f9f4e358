"""Authenticates every request before it reaches a route."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.access.bearer import AGENT_HEADER, Authenticator, Unauthorized
from diptych.access.caller import Caller, Forbidden, set_caller
from diptych.access.grants import Grant, Right, rights_of
from diptych.http.agent_profile import CARD_PATH, OLDER_CARD_PATHS
from diptych.http.audit import write_line
from diptych.http.errors import error_body, error_response, request_error_response
from diptych.http.page.routes import PAGE_PATHS
from diptych.mcp import CALLBACK_PATH, CLIENT_PATH, START_PATH
from diptych.net.redaction import without_tokens

OPEN_PATHS = PAGE_PATHS | {
    "/health",
    "/ready",
    CARD_PATH,
    *OLDER_CARD_PATHS,
    START_PATH,
    CALLBACK_PATH,
    CLIENT_PATH,
}
"""Need no proof: a platform's probes, what an agent says of itself, the empty page, and sign-ins,
whose pages have other proof (`http.logins`)."""

_NOT_DESCRIBING = re.compile(r"[^ !#-[\]-~]")
"""What an `error_description` must not have (RFC 6750, section 3); a claim's name may."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """An agent's authenticator and grants; grants are read at each request.

    `refresh_keys` fetches an issuer's keys again. `agent` is the agent's name in error messages;
    `advice` says there how one gets token and right, where `diptych token` gives none.
    POST requests to `signed_paths` pass: their route verifies a signature instead.
    """

    authenticator: Authenticator
    grants: Callable[[], Iterable[Grant]]
    refresh_keys: Callable[[str], Awaitable[None]]
    agent: str
    on_refused: Callable[[str], None]
    approves_own: bool = False
    advice: str = ""
    signed_paths: frozenset[str] = frozenset()

    async def caller(self, scope: Scope) -> Caller:
        """Return the caller of a request. Raises `Unauthorized`."""
        headers = Headers(scope=scope)
        agent = headers.getlist(AGENT_HEADER)
        about = headers.getlist("authorization"), agent[0] if len(agent) == 1 else ""
        try:
            subject = self.authenticator.subject(*about)
        except Unauthorized as error:
            if error.unknown_key_of is None:
                raise
            await self.refresh_keys(error.unknown_key_of)
            subject = self.authenticator.subject(*about)
        return Caller(subject, rights_of(subject, self.grants()), self.approves_own)

    async def rights(self, scope: Scope) -> frozenset[Right]:
        """Return the rights of a request's caller; none without a valid credential."""
        try:
            return (await self.caller(scope)).rights - {Right.STATUS}
        except Unauthorized:
            return frozenset()


class AccessGuard:
    """ASGI middleware: sets the caller of each request, or refuses it with 401 or 403.

    With `needs` every path needs this right.
    """

    def __init__(self, app: ASGIApp, policy: AccessPolicy, needs: Right | None = None) -> None:
        self._app = app
        self._policy = policy
        self._needs = needs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_signed = scope["method"] == "POST" and scope["path"] in self._policy.signed_paths
        is_open = scope["path"] in OPEN_PATHS and not self._needs
        if is_signed or (is_open and "authorization" not in Headers(scope=scope)):
            set_caller(Caller(None, frozenset()))
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._policy.caller(scope)
        except Unauthorized as error:
            if not is_open:
                await self._refuse(error, scope, receive, send)
                return
            caller = Caller(None, frozenset())
            send = _with_challenge(send, error)
        rights = caller.rights & {self._needs} if self._needs else caller.rights - {Right.STATUS}
        if not rights and not is_open:
            await self._forbid(caller, scope, receive, send)
            return
        set_caller(caller)
        await self._app(scope, receive, send)

    async def _refuse(
        self, error: Unauthorized, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Refuse with 401 (RFC 6750, section 3)."""
        self._note(scope, "anybody", error.message, error.error or "no_credential")
        advice = self._policy.advice or f"`diptych token {self._policy.agent}` gives one"
        message = f"{error.message}; send Authorization: Bearer with a token or key ({advice})"
        body = error_body(message, "invalid_request_error", code=error.error or "unauthorized")
        headers = {"WWW-Authenticate": _challenge(error)}
        await error_response(scope["path"], 401, body, headers)(scope, receive, send)

    async def _forbid(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        self._note(scope, str(caller.subject), "it has no right here", "forbidden")
        error = Forbidden(self._needs or Right.ASK)
        if self._policy.advice:
            error.message += f": {self._policy.advice}"
        await request_error_response(scope["path"], error)(scope, receive, send)

    def _note(self, scope: Scope, subject: str, why: str, reason: str) -> None:
        self._policy.on_refused(reason)
        line = {
            "subject": subject,
            "outcome": "refused",
            "method": scope["method"],
            "path": without_tokens(scope["path"])[:200],
            "why": why,
        }
        write_line(logging.WARNING, line)


def _challenge(error: Unauthorized) -> str:
    described = _NOT_DESCRIBING.sub("?", error.message)
    challenge = f'Bearer realm="diptych", error_description="{described}"'
    return f'{challenge}, error="{error.error}"' if error.error else challenge


def _with_challenge(send: Send, error: Unauthorized) -> Send:
    """Add the challenge for an invalid token to an open path's response (RFC 9110, 11.6.1)."""

    async def send_with_challenge(message: Message) -> None:
        if message["type"] == "http.response.start":
            header = (b"www-authenticate", _challenge(error).encode("latin-1"))
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return send_with_challenge
