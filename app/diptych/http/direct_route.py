"""Routes whose handlers read their requests themselves: FastAPI describes them, and no more.

For each request FastAPI looks for parameters, dependencies and files, in forty functions. A handler
that takes the request alone has none of them.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send


class DirectRoute(APIRoute):
    """Belongs among the routes of the application: those of a router are called otherwise."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        **described: Any,  # noqa: ANN401 - as `APIRoute` takes it
    ) -> None:
        super().__init__(path, endpoint, **described)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = respond

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Route.matches(self, scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Route.handle(self, scope, receive, send)
