"""The web application of one agent: all middleware, then all routes.

The middleware that `create_app` adds last sees a request first.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from diptych.access.limits import Limits, RunLimiter
from diptych.budgets.agent_budgets import AgentBudgets
from diptych.http.access_guard import AccessGuard, AccessPolicy
from diptych.http.agent import agent_routes
from diptych.http.agent_profile import CARD_PATH, MCP_PATH, OLDER_CARD_PATHS, AgentProfile
from diptych.http.chat import chat_routes
from diptych.http.errors import REST_PATH, add_error_handlers
from diptych.http.guarded_runs import GuardedRuns, GuardedSessions
from diptych.http.guards import BodyGuard, CorsForApi, LoopbackGuard, RequestIds
from diptych.http.health import Readiness, health_routes, metrics_routes
from diptych.http.lazy_routes import LazyRoutes
from diptych.http.logins import SignInPages, login_routes
from diptych.http.openapi import document
from diptych.http.page.routes import page_routes
from diptych.http.responses.routes import response_routes
from diptych.http.run_request import ChatTerms
from diptych.http.run_tree import tree_routes
from diptych.http.runs import run_routes
from diptych.http.session_memory import memory_routes
from diptych.http.triggers import signed_paths, trigger_routes
from diptych.http.waits import wait_routes
from diptych.manifest.settings import ChatConfig, TriggerConfig
from diptych.net.memory_budget import MemoryBudget
from diptych.ports.stores import Stores
from diptych.runs.service import RunService

if TYPE_CHECKING:
    from diptych.a2a.push import PushSender
    from diptych.mcp.sign_in import SignIns

A2A_PATHS = (CARD_PATH, *OLDER_CARD_PATHS, "/a2a", "/a2a/", REST_PATH)


@dataclass(frozen=True, slots=True)
class AppDependencies:
    """Dependencies of an application's routes.

    `metrics` returns a text and its media type; None if metrics have their own port. `has_docs`
    serves `/docs` and `/redoc`.
    """

    profile: AgentProfile
    runs: RunService
    stores: Stores
    readiness: Callable[[], Readiness]
    metrics: Callable[[], tuple[bytes, str]] | None
    limits: Limits = field(default_factory=Limits)
    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)
    access: AccessPolicy | None = None  # None: everybody may do everything
    has_docs: bool = False
    chat: ChatConfig = field(default_factory=ChatConfig)
    budgets: AgentBudgets | None = None  # None: nothing is counted
    triggers: tuple[TriggerConfig, ...] = ()
    sign_ins: "SignIns | None" = None  # None: no tool server has `auth`
    push_sender: "Callable[[], PushSender] | None" = None  # None: no push notifications


class AgentApp(FastAPI):
    """FastAPI with our own OpenAPI document; see `http.openapi`."""

    needs_credential = False

    def openapi(self) -> dict[str, Any]:
        """Build the OpenAPI document when it is first asked for."""
        self.openapi_schema = self.openapi_schema or document(
            self, needs_credential=self.needs_credential
        )
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        """Wrap everything in request ids, including the framework's reply to a bug."""
        return RequestIds(super().build_middleware_stack())


def create_app(dependencies: AppDependencies, *, on_loopback: bool) -> FastAPI:
    """Build the application; `on_loopback` adds the guard against foreign web pages."""
    profile = dependencies.profile
    name = profile.name
    app = AgentApp(
        title=f"Diptych agent {name}",
        description=profile.description,
        version=profile.version,
        docs_url="/docs" if dependencies.has_docs else None,
        redoc_url="/redoc" if dependencies.has_docs else None,
        redirect_slashes=False,  # to where the Host header says, with the caller's token
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    stores = dependencies.stores
    runs = GuardedRuns(
        dependencies.runs,
        RunLimiter(dependencies.limits, time.monotonic),
        dependencies.chat,
    )
    terms = ChatTerms(name, dependencies.chat, profile.inputs)
    app.include_router(chat_routes(terms, runs))
    app.include_router(response_routes(terms, runs))
    app.include_router(run_routes(runs, profile.inputs, dependencies.budgets))
    app.include_router(trigger_routes(runs, dependencies.triggers))
    app.include_router(tree_routes(runs, name, dependencies.runs))
    app.include_router(wait_routes(dependencies.runs))
    sign_ins = dependencies.sign_ins
    app.include_router(login_routes(sign_ins, dependencies.runs, stores.log))
    if sign_ins and sign_ins.servers:
        pages = SignInPages(name, sign_ins, dependencies.runs, stores.log)
        app.router.routes.extend(pages.routes())
    sessions = GuardedSessions(stores.log, stores.sessions)
    app.include_router(memory_routes(name, runs, sessions))
    app.include_router(health_routes(name, dependencies.readiness))
    app.include_router(agent_routes(profile, dependencies.readiness))
    if dependencies.metrics:
        app.include_router(metrics_routes(dependencies.metrics))
    app.router.routes.append(
        LazyRoutes(A2A_PATHS, partial(_a2a_routes, runs, dependencies), prefix=f"{REST_PATH}/")
    )
    app.router.routes.append(LazyRoutes([MCP_PATH], partial(_mcp_routes, runs, profile)))
    app.router.routes.extend(page_routes(profile))
    add_error_handlers(app)
    app.add_middleware(BodyGuard, memory_budget=dependencies.memory_budget)
    if dependencies.access:
        app.needs_credential = True
        access = replace(dependencies.access, signed_paths=signed_paths(dependencies.triggers))
        app.add_middleware(AccessGuard, policy=access)
    if dependencies.chat.cors_origins:
        app.add_middleware(CorsForApi, origins=dependencies.chat.cors_origins)
    if on_loopback:
        app.add_middleware(LoopbackGuard)
    return app


def create_metrics_app(metrics: Callable[[], tuple[bytes, str]], *, on_loopback: bool) -> FastAPI:
    """Build the application for the metrics port: only `/metrics`, without authentication."""
    app = FastAPI(openapi_url=None, telemetry={"tracing": False, "metrics": False, "logs": False})
    app.include_router(metrics_routes(metrics))
    if on_loopback:
        app.add_middleware(LoopbackGuard)
    return app


def _a2a_routes(runs: GuardedRuns, dependencies: AppDependencies) -> Sequence[BaseRoute]:
    from diptych.a2a.replies import Replies  # noqa: PLC0415 - see `LazyRoutes`
    from diptych.a2a.routes import a2a_routes  # noqa: PLC0415 - see `LazyRoutes`

    push_sender = dependencies.push_sender
    pushes = push_sender() if push_sender else None
    replies = Replies(dependencies.runs)
    return a2a_routes(runs, dependencies.profile, pushes, replies=replies)


def _mcp_routes(runs: GuardedRuns, profile: AgentProfile) -> Sequence[BaseRoute]:
    from diptych.http.mcp import mcp_routes  # noqa: PLC0415 - see `LazyRoutes`

    return mcp_routes(runs, profile)
