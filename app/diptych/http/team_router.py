"""One address for all agents of a process, in front of their applications.

`/agents/<name>/…` is each agent's whole API. At the root, chats and responses go to the agent that
`model` names, stored runs to the agent that has them, `GET /v1/models` lists all, `/mcp` has
a tool for each agent, and all else goes to the first agent. Each application keeps its own guards,
so access holds as at its own port.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych.access.grants import Right
from diptych.core.errors import DiptychError, Overloaded, RunLost
from diptych.http.agent_profile import MCP_PATH, PREFIX, TEAM, AgentProfile
from diptych.http.caller_calls import run_of
from diptych.http.errors import error_body, error_response
from diptych.http.guards import MAX_BODY, RequestIds
from diptych.net.memory_budget import MemoryBudget, json_size

AGENTS_PATH = "/agents/"
_MODELS_PATH = "/v1/models"
_ASKING_PATHS = frozenset({"/v1/chat/completions", "/v1/responses"})
_RUN_PATHS = ("/v1/responses/", "/v1/runs/")


@dataclass(frozen=True, slots=True)
class TeamMember:
    """An agent's profile and application, and the rights of a request's caller there.

    `has_run` raises a `DiptychError` for a run that it cannot find.
    """

    profile: AgentProfile
    app: ASGIApp
    has_run: Callable[[str], Awaitable[object]]
    rights: Callable[[Scope], Awaitable[frozenset[Right]]]


class TeamRouter:
    """ASGI application that passes each request to one of the `members`, by name, first first.

    Members may come and go.
    """

    def __init__(self, members: Mapping[str, TeamMember], memory_budget: MemoryBudget) -> None:
        self._members = members
        self._memory_budget = memory_budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path.startswith(AGENTS_PATH):
            await self._member(path)(scope, receive, send)
        elif path in _ASKING_PATHS and method == "POST":
            await self._ask(scope, receive, send)
        elif path == MCP_PATH and method == "POST":
            await self._call_mcp(scope, receive, send)
        elif path == _MODELS_PATH and method == "GET":
            await self._list_models(scope, receive, send)
        elif path.startswith(f"{_MODELS_PATH}/"):
            name = path.removeprefix(f"{_MODELS_PATH}/")
            await self._app_of(name)(scope, receive, send)
        elif path.startswith(_RUN_PATHS):
            await (await self._owner_of(run_of(path.split("/")[3])))(scope, receive, send)
        else:
            await self._first(scope, receive, send)

    @property
    def _first(self) -> ASGIApp:
        return next((member.app for member in self._members.values()), _no_agents)

    def _app_of(self, name: object) -> ASGIApp:
        member = self._members.get(name) if isinstance(name, str) else None
        return member.app if member else self._first  # which refuses the name in its own words

    def _member(self, path: str) -> ASGIApp:
        name, slash, rest = path.removeprefix(AGENTS_PATH).partition("/")
        if name not in self._members:
            return self._first
        if not slash:
            return RequestIds(RedirectResponse(f"{AGENTS_PATH}{name}/"))
        app = self._members[name].app

        async def below_prefix(scope: Scope, receive: Receive, send: Send) -> None:
            inner = {"path": f"/{rest}", "raw_path": f"/{rest}".encode()}
            await app({**scope, **inner, PREFIX: f"{AGENTS_PATH}{name}"}, receive, send)

        return below_prefix

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body as far as an agent's guard would, then let the named agent answer it.

        Nothing is read for a caller whom no agent accepts. A body that is too large, or for which
        there is no memory, is left to the first agent's guard, which counts and refuses it.
        """
        rights = await self._rights(scope)
        if not rights:
            await self._first(scope, receive, send)
            return
        received, body = await self._read(receive)
        asked = _fields_of(body)
        model, previous = asked.get("model"), asked.get("previous_response_id")
        app = self._app_of(model)
        if isinstance(model, str) and model not in self._members:
            names = [profile.name for profile in self._askable(rights)]
            app = RequestIds(_unknown_model(model, names, scope["path"]))
        elif model is None and isinstance(previous, str):
            app = await self._owner_of(run_of(previous))
        await app(scope, _replayed(received, receive), send)

    async def _call_mcp(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the named agent answer a call, and the first that accepts the caller all else.

        Every agent that accepts the caller hears of a cancelled request; one of them has its run.
        """
        rights = await self._rights(scope)
        if not rights:
            await self._first(scope, receive, send)
            return
        app, *others = [self._members[name].app for name in rights]
        received, body = await self._read(receive)
        match _fields_of(body):
            case {"method": "tools/call", "params": {"name": str(name)}} if name in self._members:
                app = self._members[name].app
            case {"method": "tools/list"}:
                scope = {**scope, TEAM: self._askable(rights)}
            case {"method": "notifications/cancelled"}:
                for other in others:
                    await other(scope, _replayed(received, receive), _dropped)
        await app(scope, _replayed(received, receive), send)

    async def _rights(self, scope: Scope) -> dict[str, frozenset[Right]]:
        """Return the caller's rights at each agent where it has any."""
        found = {name: await each.rights(scope) for name, each in tuple(self._members.items())}
        return {name: rights for name, rights in found.items() if rights and name in self._members}

    def _askable(self, rights: Mapping[str, frozenset[Right]]) -> list[AgentProfile]:
        names = [name for name, found in rights.items() if Right.ASK in found]
        return [self._members[name].profile for name in names if name in self._members]

    async def _read(self, receive: Receive) -> tuple[list[Message], bytes]:
        """Return the messages of a body, and the body; without memory for it, an empty one."""
        share = self._memory_budget.share()
        received: list[Message] = []
        body = b""
        try:
            while len(body) <= MAX_BODY:
                message = await receive()
                received.append(message)
                piece = message.get("body", b"")
                share.admit(json_size(piece))
                body += piece
                if not message.get("more_body", False):
                    break
        except Overloaded:
            body = b""
        finally:
            share.release()  # the agent's guard counts it from here on
        return received, body

    async def _owner_of(self, run_id: str) -> ASGIApp:
        others: list[ASGIApp] = []  # may have had it; an agent with another store says RunLost
        for member in tuple(self._members.values()):
            try:
                await member.has_run(run_id)
            except RunLost:
                continue
            except DiptychError:
                others.append(member.app)
            else:
                return member.app
        return (*others, self._first)[0]

    async def _list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the first agent that accepts the caller list all that it may ask."""
        rights = await self._rights(scope)
        app = self._app_of(next(iter(rights), None))
        await app({**scope, TEAM: self._askable(rights)}, receive, send)


async def _no_agents(scope: Scope, receive: Receive, send: Send) -> None:
    body = error_body("there is no agent here yet", "server_error", code="overloaded")
    await error_response(scope["path"], 503, body)(scope, receive, send)


async def _dropped(message: Message) -> None:
    """Drop a part of an answer: the caller gets another agent's."""


def _unknown_model(model: str, names: list[str], path: str) -> Response:
    message = f"no agent here is called {model[:64]!r}; the models are: {', '.join(names)}"
    body = error_body(message, "invalid_request_error", code="model_not_found", param="model")
    return error_response(path, HTTPStatus.NOT_FOUND, body)


def _fields_of(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _replayed(received: list[Message], receive: Receive) -> Receive:
    pending = iter(received)

    async def receive_again() -> Message:
        for message in pending:
            return message
        return await receive()

    return receive_again
