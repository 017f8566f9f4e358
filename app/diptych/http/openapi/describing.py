"""What the descriptions of all operations are made of: plain dictionaries."""

from collections.abc import Sequence
from typing import Any

STORE_ERRORS = (500, 503)  # of whatever reads or writes runs
RUN_ERRORS = (404, 410, *STORE_ERRORS)  # of whatever names a run
RUN_HEADERS = ("X-Session-ID", "X-Run-ID")  # of responses
START_HEADERS = ("X-Session-ID", "Idempotency-Key", "traceparent")  # of requests


def operation(  # noqa: PLR0913 - each is a part of OpenAPI's Operation Object
    operation_id: str,
    summary: str,
    description: str,
    responses: dict[int, dict[str, Any]],
    *,
    body: str | None = None,
    needs_body: bool = True,
    headers: Sequence[str] = (),
    errors: Sequence[int] = (),
) -> dict[str, Any]:
    """Describe a route; `errors` are statuses whose description is the same everywhere."""
    extra: dict[str, Any] = {}
    if headers:
        extra["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in headers]
    if body:
        extra["requestBody"] = {"required": needs_body, "content": json_content(body)}
        errors = (*errors, 400, 413, 415)
    return {
        "operation_id": operation_id,
        "summary": summary,
        "description": description,
        "responses": {status: {} for status in errors} | responses,
        "openapi_extra": extra,
    }


def json_reply(schema: str, description: str, headers: Sequence[str] = ()) -> dict[str, Any]:
    """Describe a reply in JSON; `schema` is the name of its schema."""
    response: dict[str, Any] = {"description": description, "content": json_content(schema)}
    if headers:
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    return response


def event_stream(description: str, example: str) -> dict[str, Any]:
    """Give the content of server-sent events.

    OpenAPI 3.1 has no schema for single events, and tools differ on what a schema here is of: the
    whole text or one event. So it names no type.
    """
    schema = {"description": description}
    return {"text/event-stream": {"schema": schema, "example": example}}


def json_content(schema: str) -> dict[str, Any]:
    """Give the content of a JSON body; `schema` is the name of its schema."""
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
