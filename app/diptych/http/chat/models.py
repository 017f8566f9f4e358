"""`/v1/models`: the agent as the one model that there is."""

import time
from typing import Any

from fastapi import APIRouter

from diptych.http.chat_terms import check_model
from diptych.http.openapi import operations


def model_routes(name: str) -> APIRouter:
    """Give the routes of an agent of this name."""
    router = APIRouter()
    started = int(time.time())

    @router.get("/v1/models", **operations.LIST_MODELS)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name, started)]}

    @router.get("/v1/models/{model}", **operations.READ_MODEL)
    async def model(model: str) -> dict[str, Any]:
        check_model(model, name)
        return _model(name, started)

    return router


def _model(name: str, started: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": started, "owned_by": "diptych"}
