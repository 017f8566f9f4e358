"""The web application of one agent: puts all routes together. It decides nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import Response
from starlette.routing import BaseRoute

from diptych.http.agent_profile import AgentProfile
from diptych.http.chat.routes import chat_routes
from diptych.http.errors import add_error_handlers, error_body, error_response
from diptych.http.guards import BodyGuard, LoopbackGuard
from diptych.http.health import Readiness, health_routes
from diptych.http.lazy_routes import LazyRoutes
from diptych.http.memory import memory_routes
from diptych.http.runs.routes import run_routes
from diptych.runtime.service import RunService
from diptych.runtime.stores import Stores

A2A_PATHS = ("/.well-known/agent-card.json", "/a2a", "/a2a/")


@dataclass(frozen=True, slots=True)
class AppDependencies:
    """What the routes of an application use."""

    profile: AgentProfile
    runs: RunService
    stores: Stores
    readiness: Callable[[], Readiness]
    metrics: Callable[[], tuple[bytes, str]]


class AgentApp(FastAPI):
    """FastAPI with a document of its own; see `http.openapi`."""

    def openapi(self) -> dict[str, Any]:
        """Build the OpenAPI document when it is first asked for."""
        from diptych.http.openapi.document import document  # noqa: PLC0415 - only needed here

        self.openapi_schema = self.openapi_schema or document(self)
        return self.openapi_schema


def create_app(dependencies: AppDependencies, *, on_loopback: bool) -> FastAPI:
    """Build the application; `on_loopback` adds the guard against foreign web pages."""
    name = dependencies.profile.name
    app = AgentApp(
        title=f"Diptych agent {name}",
        description=dependencies.profile.description,
        version=dependencies.profile.version,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.include_router(chat_routes(name, dependencies.runs))
    app.include_router(run_routes(dependencies.runs))
    app.include_router(memory_routes(name, dependencies.stores.log, dependencies.stores.sessions))
    app.include_router(health_routes(name, dependencies.readiness, dependencies.metrics))
    app.router.routes.append(LazyRoutes(A2A_PATHS, partial(_a2a_routes, dependencies)))
    add_error_handlers(app)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_middleware(BodyGuard)
    if on_loopback:
        app.add_middleware(LoopbackGuard)
    return app


def _a2a_routes(dependencies: AppDependencies) -> Sequence[BaseRoute]:
    from diptych.http.a2a.routes import a2a_routes  # noqa: PLC0415 - see `LazyRoutes`

    return a2a_routes(dependencies.runs, dependencies.profile)


def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    """Answer a query parameter that is not valid; `bodies` answers for bodies."""
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    param = str(problem["loc"][-1])
    message = f"{param}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
    body = error_body(message, "invalid_request_error", code="invalid_value", param=param)
    return error_response(request.url.path, 400, body)
