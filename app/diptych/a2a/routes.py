"""The routes of A2A: the agent card, JSON-RPC at `/a2a`, and REST at `/a2a/rest`.

Both bindings speak 1.0, and 0.3 for older clients.
"""

from a2a.server.routes import create_jsonrpc_routes
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from diptych.a2a.bindings import Endpoint, json_problem, name_extension
from diptych.a2a.card import RPC_PATH, card_routes
from diptych.a2a.handler import TaskHandler
from diptych.a2a.older import OlderRpc
from diptych.a2a.parameters import read_state
from diptych.a2a.rest import rest_routes
from diptych.http.agent_profile import AgentProfile
from diptych.http.guarded_runs import GuardedRuns

SHUTDOWN_GRACE = 4.0  # seconds; the server's own is 5
PARSE_ERROR = -32700


def a2a_routes(
    runs: GuardedRuns, profile: AgentProfile, *, shutdown_grace_period: float = SHUTDOWN_GRACE
) -> list[Route]:
    """Give the routes of the agent card, of JSON-RPC at `/a2a` and `/a2a/`, and of REST.

    `shutdown_grace_period` is how many seconds open streams get to end when the server stops; it
    must be less than the server's own graceful timeout.
    """
    handler = TaskHandler(runs)
    (rpc,) = create_jsonrpc_routes(handler, RPC_PATH, shutdown_grace_period=shutdown_grace_period)
    endpoint = _answered(rpc.endpoint, OlderRpc(handler, shutdown_grace_period))
    return [
        *card_routes(profile),
        *(Route(path, endpoint, methods=["POST"]) for path in (RPC_PATH, f"{RPC_PATH}/")),
        *rest_routes(handler, shutdown_grace_period),
    ]


def _answered(newer: Endpoint, older: OlderRpc) -> Endpoint:
    """Answer a body that is no JSON, for which the SDK has HTTP 500 or an internal error."""

    async def answer(request: Request) -> Response:
        if problem := await json_problem(request):
            error = {"code": PARSE_ERROR, "message": problem}
            return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error})
        body = await request.json()
        is_older = older.takes(request, body)
        if isinstance(body, dict) and body.get("method") == "ListTasks":
            _name_state(body.get("params"))
        response: Response = await (older.answer(request, body) if is_older else newer(request))
        name_extension(request, response, is_older=is_older)
        return response

    return answer


def _name_state(params: object) -> None:
    """Write the state that is asked for as a number, in the body that the SDK reads, too."""
    if isinstance(params, dict) and "status" in params:
        params["status"] = read_state(params["status"])
