"""Bodies: strict JSON in requests, models that several protocols share, and replies."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from diptych.core.errors import InvalidRequest
from diptych.net.strict_reading import read_strictly
from diptych.runs.definition import WhenBusy

OnDisconnect = Literal["continue", "cancel"]
_SESSION_ID: JsonDict = {"pattern": "^[A-Za-z0-9._-]{1,128}$"}  # checked by `runs.request`


class Body(BaseModel):
    """Base of request models: no type coercion, so no string for a number."""

    model_config = ConfigDict(strict=True)


class RunOptions(Body):
    """Fields of every request that starts a run."""

    session_id: str | None = Field(
        None,
        description="Continues or starts a session; the header X-Session-ID does the same.",
        json_schema_extra=_SESSION_ID,
    )
    on_disconnect: OnDisconnect | None = Field(
        None, description="`cancel`: abort the run when its last reader at this process hangs up."
    )
    when_busy: WhenBusy | None = Field(
        None,
        description="What happens while another run of the session is not finished, in place of "
        "the manifest's `sessions.whenBusy`: wait for it, refuse the request (409), or cancel "
        "that run.",
    )
    max_steps: int | None = Field(
        None, ge=1, description="Max steps of this run; at most the manifest's `maxSteps`."
    )


async def parsed(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    """Parse a body. Raises `InvalidRequest`."""
    try:
        return await read_strictly(raw)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error


class _JsonRequest(Request):
    """A request whose JSON has already been parsed."""

    value: Any = None

    async def json(self) -> Any:  # noqa: ANN401 - JSON
        return self.value


class JsonRoute(APIRoute):
    """A FastAPI route that parses its body with `read_strictly`, so that all parsers agree on
    it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def read_and_handle(request: Request) -> Response:
            read = _JsonRequest(request.scope, request.receive)
            if raw := await read.body():
                read.value = await parsed(raw)
            return await handle(read)

        return read_and_handle


def json_response(
    view: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a view, which may be large, as JSON: FastAPI would copy it twice and take ten times as
    long.
    """
    return Response(orjson.dumps(view), status, headers, "application/json")


def json_router() -> APIRouter:
    """Return a router of `JsonRoute`s whose operation ids are the functions' names."""
    return APIRouter(route_class=JsonRoute, generate_unique_id_function=_operation_id)


def _operation_id(route: APIRoute) -> str:
    return route.name
