"""The web application of one agent: all routes, put together. It decides nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response
from starlette.routing import BaseRoute

from diptych.http.a2a.card_facts import CardFacts
from diptych.http.chat.routes import chat_routes
from diptych.http.errors import add_error_handlers, error_body, error_response
from diptych.http.guards import BodyGuard, LoopbackGuard
from diptych.http.health import Readiness, health_routes
from diptych.http.lazy_routes import LateRoutes
from diptych.http.memory import memory_routes
from diptych.http.runs.routes import run_routes
from diptych.runtime.service import RunService
from diptych.runtime.stores import Stores

A2A_PATHS = ("/.well-known/agent-card.json", "/a2a", "/a2a/")


@dataclass(frozen=True, slots=True)
class Served:
    """What an application serves."""

    card: CardFacts
    runs: RunService
    stores: Stores
    readiness: Callable[[], Readiness]
    metrics: Callable[[], tuple[bytes, str]]


def create_app(served: Served, *, on_loopback: bool) -> FastAPI:
    """Put the application together; `on_loopback` turns the guard against foreign pages on."""
    name = served.card.name
    app = FastAPI(
        title=f"Diptych agent {name}",
        description=served.card.description,
        version=served.card.version,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.include_router(chat_routes(name, served.runs))
    app.include_router(run_routes(served.runs))
    app.include_router(memory_routes(name, served.stores.log, served.stores.sessions))
    app.include_router(health_routes(name, served.readiness, served.metrics))
    app.router.routes.append(LateRoutes(A2A_PATHS, partial(_a2a_routes, served)))
    add_error_handlers(app)
    app.add_exception_handler(RequestValidationError, _on_query)
    app.add_middleware(BodyGuard)
    if on_loopback:
        app.add_middleware(LoopbackGuard)
    return app


def _a2a_routes(served: Served) -> Sequence[BaseRoute]:
    from diptych.http.a2a.handler import a2a_routes  # noqa: PLC0415 - see `late`

    return a2a_routes(served.runs, served.card)


def _on_query(request: Request, error: Exception) -> Response:
    """Answer a query parameter that does not fit (bodies are read by `bodies`)."""
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    param = str(problem["loc"][-1])
    message = f"{param}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    body = error_body(message, "invalid_request_error", code="invalid_value", param=param)
    return error_response(request.url.path, 400, body)
