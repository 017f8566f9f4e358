"""Builds the OpenAPI document of an application. Imported when the document is asked for.

FastAPI describes paths and query parameters. Added here: the schemas that the routes name, errors
as they are, and A2A's paths, whose routes are built later.
"""

from collections.abc import Iterator
from copy import deepcopy
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from diptych.http import schemas
from diptych.http.access_guard import OPEN_PATHS
from diptych.http.bodies import ChatBody, DecisionBody, MessageBody, ResumeBody, RunBody
from diptych.http.openapi import (
    approval_schemas,
    chat_schemas,
    error_schemas,
    response_schemas,
    tree_schemas,
)
from diptych.http.openapi.a2a_paths import A2A_PATHS, JSONRPC, REST_ERROR
from diptych.http.openapi.describing import json_content
from diptych.http.responses.response_body import ResponseBody
from diptych.http.rest_errors import is_rest_path

REPLIES: tuple[type[BaseModel], ...] = (
    schemas.Run,
    schemas.RunList,
    schemas.ClearedQueue,
    approval_schemas.Approval,
    approval_schemas.ApprovalList,
    tree_schemas.RunTree,
    schemas.EventList,
    schemas.SessionList,
    chat_schemas.Model,
    chat_schemas.ModelList,
    chat_schemas.ChatCompletion,
    chat_schemas.ChatCompletionChunk,
    response_schemas.Response,
    response_schemas.InputItemList,
    response_schemas.DeletedResponse,
    error_schemas.Error,
    error_schemas.Problem,
    schemas.Health,
    schemas.Ready,
)
BODIES: tuple[type[BaseModel], ...] = (
    ChatBody,
    ResponseBody,
    RunBody,
    ResumeBody,
    MessageBody,
    DecisionBody,
)

ERRORS = {
    400: "What was sent is wrong; `param` names it.",
    401: "`unauthorized`, `invalid_token`: there is no token or key, or it is not valid here.",
    403: "`forbidden`: the message names the right that this needs.",
    404: "`run_not_found`, `session_not_found`, `model_not_found`, `approval_not_found`, "
    "`previous_response_not_found` or `item_not_found`: there never was one.",
    409: "`session_busy`; `run_over`: the run has ended and takes no message; "
    "`too_many_messages`: it has had all that it takes; `already_decided`: "
    "the message says what was decided, and by whom; `not_resumable`; `aborted`.",
    410: "`run_lost`: the run existed, and its record is gone.",
    413: "`body_too_large`: the body is larger than 1 MiB.",
    415: "`unsupported_media_type`: the body is not declared as JSON. "
    "`unsupported_content_encoding`: it is compressed.",
    422: "`idempotency_mismatch`: the key came with another request before. `invalid_arguments`: "
    "`param` is the path of what does not fit.",
    429: "`budget_exhausted`: the run has used up its budget. `too_many_runs`, `too_much_at_once`: "
    "the caller has reached its limit; try again after `Retry-After`.",
    500: "`internal_error`, `too_many_owners`: the agent failed inside. `stuck`: five "
    "steps in a row brought nothing but the same error.",
    502: "The model failed, or a hook (`hook_failed`); the code says how.",
    503: "`overloaded`, `store_away`, `store_full`, `not_answered`, `handed_over`: try again after "
    "`Retry-After`. `store_lost`: the store lost the run. `out_of_memory`, `budget_unavailable`: "
    "the run ended for want of memory, or as its budget could not be counted. "
    "`agent_unavailable`: an agent below does not answer.",
    504: "`model_timeout`, `deadline_exceeded`: it took too long.",
}

_ASKING = ("/v1/chat/completions", "/v1/responses")
_RUN_FAILURES = {409, 410, 429, 500, 502, 503, 504}  # of these: the run was started, and has an id

_SESSION_ID = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "X-Session-ID": {
        "description": "Continues or starts a session, as `session_id` in the body does.",
        "schema": _SESSION_ID,
    },
    "Idempotency-Key": {
        "description": "A request with the key, path, session and body of an earlier one is that "
        "one, sent again.",
        "schema": {"type": "string", "pattern": "^[\\x20-\\x7e]{1,255}$"},
    },
    "traceparent": {
        "description": "The caller's trace (W3C Trace Context); ignored if it is malformed.",
        "schema": {"type": "string"},
    },
    "Last-Event-ID": {
        "description": "The id of the last event that the caller has; goes before "
        "`starting_after`.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
    },
}
_HEADERS = {
    "X-Session-ID": {"description": "The run's session.", "schema": _SESSION_ID},
    "X-Run-ID": {"description": "The id of the run.", "schema": {"type": "string"}},
    "X-Diptych-Warning": {
        "description": "`ignored: ` and the names of the fields that have no effect.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
    "WWW-Authenticate": {
        "description": "A `Bearer` challenge (RFC 6750, section 3).",
        "schema": {"type": "string"},
    },
    "x-should-retry": {
        "description": "`false` if a call of the run may have started, which a retry would repeat, "
        "or if the run has asked again itself.",
        "schema": {"const": "false"},
    },
}
_DESCRIPTION = """

Errors under `/v1/` have OpenAI's form (`Error`), those of `/a2a` JSON-RPC's, those under
`/a2a/rest/` that of A2A's REST binding, and those of other paths are problem+json (`Problem`).
Every response has an `X-Request-Id`: the request's own, if it is 1 to 128 of the characters
`A-Z a-z 0-9 _ . : / + = @ ~ -`, else one that was made.
An agent on loopback answers a foreign `Host` with 421 and a foreign `Origin` with 403."""


def document(app: FastAPI, *, needs_credential: bool) -> dict[str, Any]:
    """Build the document of an application's routes.

    With `needs_credential` all but `OPEN_PATHS` answer 401 without a token or key, and 429 to a
    caller that takes too much.
    """
    built = get_openapi(
        title=app.title,
        version=app.version,
        description=f"{app.description}{_DESCRIPTION}".strip(),
        routes=app.routes,
    )
    built["paths"] |= deepcopy(A2A_PATHS)  # what is below changes it
    for path, operation in operations(built):
        if needs_credential:
            is_open = path in OPEN_PATHS
            operation["security"] = [{}, _BEARER] if is_open else [_BEARER]
            if not is_open:
                operation["responses"] |= {"401": {}, "403": {}, "429": {}}
        _clean(path, operation)
    _, definitions = models_json_schema(
        [*((model, "serialization") for model in REPLIES), *((m, "validation") for m in BODIES)],
        ref_template="#/components/schemas/{model}",
    )
    built["components"] = {
        "schemas": dict(sorted(definitions["$defs"].items())),
        "parameters": {
            name: {"name": name, "in": "header", "required": False, **parameter}
            for name, parameter in _PARAMETERS.items()
        },
        "headers": _HEADERS,
    }
    if needs_credential:
        built["components"]["securitySchemes"] = {
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the cluster or of an issuer, or a key.",
            }
        }
    return built


def operations(built: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give all operations with their paths."""
    for path, item in built["paths"].items():
        for operation in item.values():
            yield path, operation


def _clean(path: str, operation: dict[str, Any]) -> None:
    """Replace what FastAPI derives from the annotations of handlers, which say less."""
    for parameter in operation.get("parameters", ()):
        if "anyOf" in parameter.get("schema", {}):  # no query can hold a null
            parameter["schema"] |= parameter["schema"].pop("anyOf")[0]
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # `http.app` answers with 400
        if any(parameter.get("in") == "query" for parameter in operation["parameters"]):
            responses["400"] = {}
    for status, response in responses.items():
        content = {
            media_type: {**each, "schema": _only_ref(each["schema"])}
            for media_type, each in response.get("content", {}).items()
            if each["schema"].keys() & {"$ref", "description"}
        }
        if int(status) in ERRORS and not content:
            responses[status] = _error(path, int(status))
        elif content:
            response["content"] = content
        else:
            response.pop("content", None)
    operation["responses"] = dict(sorted(responses.items()))


def _only_ref(schema: dict[str, Any]) -> dict[str, Any]:
    return {"$ref": schema["$ref"]} if "$ref" in schema else schema


def _error(path: str, status: int) -> dict[str, Any]:
    if path == "/a2a":
        content: dict[str, Any] = {"application/json": {"schema": JSONRPC}}
    elif is_rest_path(path):
        content = REST_ERROR
    elif path.startswith("/v1/"):
        content = json_content("Error")
    else:
        content = {"application/problem+json": json_content("Problem")["application/json"]}
    response: dict[str, Any] = {"description": ERRORS[status], "content": content}
    names = ["Retry-After"] if status in _RETRIED else []
    if path in _ASKING and status in _RUN_FAILURES:
        names += ["X-Session-ID", "X-Run-ID", "X-Diptych-Warning", "x-should-retry"]
    if status == HTTPStatus.UNAUTHORIZED:
        names.append("WWW-Authenticate")
    if names:
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return response


_RETRIED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_BEARER: dict[str, list[str]] = {"bearer": []}
