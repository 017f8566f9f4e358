"""The routes of A2A 1.0: the agent card, and JSON-RPC at `/a2a`.

Not here: the methods (`http.a2a.handler`). A2A 0.3, the REST binding and push notifications are
not offered; a request for them gets the error that the specification has for it.
"""

import json
from collections.abc import Awaitable, Callable

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.routes import create_jsonrpc_routes
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from diptych.http.a2a.card import RPC_PATH, card_route
from diptych.http.a2a.handler import TaskHandler
from diptych.http.agent_profile import AgentProfile
from diptych.http.guarded_runs import GuardedRuns
from diptych.net import a2a_extension

SHUTDOWN_GRACE = 4.0  # seconds; the server's own is 5
PARSE_ERROR = -32700

Endpoint = Callable[[Request], Awaitable[Response]]


def a2a_routes(
    runs: GuardedRuns, profile: AgentProfile, *, shutdown_grace_period: float = SHUTDOWN_GRACE
) -> list[Route]:
    """Give the routes of the agent card and of JSON-RPC, at `/a2a` and `/a2a/`.

    `shutdown_grace_period` is how many seconds open streams get to end when the server stops; it
    must be less than the server's own graceful timeout.
    """
    (rpc,) = create_jsonrpc_routes(
        TaskHandler(runs), RPC_PATH, shutdown_grace_period=shutdown_grace_period
    )
    endpoint = _with_json_check(rpc.endpoint)
    return [
        card_route(profile),
        *(Route(path, endpoint, methods=["POST"]) for path in (RPC_PATH, f"{RPC_PATH}/")),
    ]


def _with_json_check(endpoint: Endpoint) -> Endpoint:
    """Answer a body that is no JSON, for which the SDK has HTTP 500 or an internal error.

    Also names the extension in the reply if the caller activated it (specification, 4.6).
    """

    async def answer(request: Request) -> Response:
        if problem := await _json_problem(request):
            error = {"code": PARSE_ERROR, "message": problem}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})
        response = await endpoint(request)
        requested = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        if a2a_extension.URI in requested:
            response.headers[HTTP_EXTENSION_HEADER] = a2a_extension.URI
        return response

    return answer


async def _json_problem(request: Request) -> str | None:
    try:
        body = await request.json()
        if b"\\u" in await request.body():  # half a surrogate pair cannot be echoed as UTF-8
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        return "the body is nested too deeply"
    except ValueError:
        return "the body is not JSON in UTF-8"
    return None
