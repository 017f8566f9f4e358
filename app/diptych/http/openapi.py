"""The OpenAPI document: FastAPI's, completed with replies, headers and errors.

FastAPI describes paths, parameters and bodies. Routes declare replies with `reply`; the schemas
(`http.schemas`) are imported with the document only, to keep starts fast.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from diptych.http.access_guard import OPEN_PATHS
from diptych.http.agent_profile import CARD_PATH, MCP_PATH
from diptych.http.errors import REST_PATH, is_rest_path

ERRORS = {
    400: "The request is wrong; `param` names the field.",
    401: "`unauthorized`, `invalid_token`: there is no token or key, or it is not valid here. "
    "`invalid_signature`: a trigger's delivery is not signed as it must be.",
    403: "`forbidden`: the message names the right that this needs.",
    404: "`run_not_found`, `session_not_found`, `model_not_found`, `approval_not_found`, "
    "`input_not_found`, `previous_response_not_found`, `item_not_found`, `trigger_not_found` or "
    "`login_not_found`: there never was one.",
    409: "`session_busy`; `run_over`: the run has ended and takes no message; "
    "`too_many_messages`: the run takes no more; `already_decided`: the message names the "
    "decision and who made it; `already_answered`: likewise; `not_resumable`; `aborted`; "
    "`sign_in_refused`: the message says why.",
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
    "`agent_unavailable`: an agent below does not answer. `secret_missing`: a trigger's is.",
    504: "`model_timeout`, `deadline_exceeded`: it took too long.",
}
ASKED = (409, 410, 422, 429, 502, 504)
"""The errors of a request that waits for its run's answer, beside those of every request."""

_ASKING = ("/v1/chat/completions", "/v1/responses")
_STATELESS = ("/health", "/ready", "/metrics", "/v1/agent", "/v1/models", CARD_PATH, "/a2a")
_RUN_HEADERS = ("X-Session-ID", "X-Run-ID", "X-Diptych-Warning")
_START = ("X-Session-ID", "Idempotency-Key", "traceparent")
_TAKES = {  # headers, by operation
    "complete_chat": _START,
    "create_response": _START,
    "start_run": _START,
    "start_by_trigger": ("Idempotency-Key", "traceparent"),
    "resume_run": ("Idempotency-Key", "traceparent"),
    "steer_run": ("Idempotency-Key",),
    "follow_up_run": ("Idempotency-Key",),
    "read_run_events": ("Last-Event-ID",),
}
_NAMING_RUNS = (  # operations whose replies name their run in headers
    "complete_chat",
    "create_response",
    "read_response",
    "list_input_items",
    "cancel_response",
    "read_run_events",
)
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
        "description": "The id of the caller's last event; overrides `starting_after`.",
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

Errors under `/v1/` have OpenAI's form (`Error`), those of `/a2a` and `/mcp` JSON-RPC's, those
under `/a2a/rest/` that of A2A's REST binding, and those of other paths are problem+json
(`Problem`).
Every response has an `X-Request-Id`: the request's own, if it is 1 to 128 of the characters
`A-Z a-z 0-9 _ . : / + = @ ~ -`, else one that was made.
An agent on loopback answers a foreign `Host` with 421 and a foreign `Origin` with 403."""


# For routes


class Events(NamedTuple):
    """A stream of server-sent events; OpenAPI 3.1 has no schema for single events."""

    description: str
    example: str


def reply(
    schema: str,
    description: str,
    *errors: int,
    status: int = 200,
    accepted: str = "",
    events: Events | None = None,
) -> dict[str, Any]:
    """Return a route's keyword arguments that declare its reply.

    `schema` is a name in `http.schemas`; without one the reply is not JSON. `accepted` describes an
    additional 202 reply. `errors` are statuses that `_statuses` cannot derive from the path.
    """
    content = _json(_ref(schema)) if schema else {}
    if events:
        schema_of_all = {"description": events.description}
        content["text/event-stream"] = {"schema": schema_of_all, "example": events.example}
    described = {status: {"description": description, "content": content}}
    if accepted:
        described[202] = {"description": accepted, "content": content}
    return {
        "status_code": status,
        "response_model": None,
        "responses": described | {error: {} for error in errors},
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _ref(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


# The document


def document(app: FastAPI, *, needs_credential: bool) -> dict[str, Any]:
    """Build the document of an application's routes.

    With `needs_credential` all but `OPEN_PATHS` answer 401 without a token or key, and 429 to a
    caller that takes too much.
    """
    from diptych.http.schemas import definitions  # noqa: PLC0415 - see above

    built = get_openapi(
        title=app.title,
        version=app.version,
        description=f"{app.description}{_DESCRIPTION}".strip(),
        routes=app.routes,
    )
    for item in built["paths"].values():
        for operation in item.values():
            operation["summary"] = operation["summary"].capitalize()
    built["paths"] |= _a2a_paths() | {MCP_PATH: {"post": deepcopy(_MCP)}}
    for path, item in built["paths"].items():
        for operation in item.values():
            is_open = path in OPEN_PATHS
            if needs_credential:
                operation["security"] = [{}, {"bearer": []}] if is_open else [{"bearer": []}]
            _complete(path, operation, needs_credential=needs_credential and not is_open)
    bodies = built["components"]["schemas"]
    bodies = {name: schema for name, schema in bodies.items() if "ValidationError" not in name}
    built["components"] = {
        "schemas": dict(sorted((bodies | definitions()).items())),
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


def _complete(path: str, operation: dict[str, Any], *, needs_credential: bool) -> None:
    """Add headers and errors to FastAPI's description of an operation."""
    parameters = operation.get("parameters", [])
    for parameter in parameters:
        if "anyOf" in parameter["schema"]:  # no query can hold a null
            parameter["schema"] |= parameter["schema"].pop("anyOf")[0]
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # it is a 400
    for response in responses.values():
        _clean(response)
        if "content" in response and operation["operationId"] in _NAMING_RUNS:
            response["headers"] = _header_refs(*_RUN_HEADERS)
    for status in _statuses(path, operation, needs_credential=needs_credential):
        if "content" not in responses.setdefault(str(status), {}):
            responses[str(status)] = _error(path, status)
    operation["responses"] = dict(sorted(responses.items()))
    if taken := _TAKES.get(operation["operationId"]):
        refs = [{"$ref": f"#/components/parameters/{name}"} for name in taken]
        operation["parameters"] = [*parameters, *refs]


def _clean(response: dict[str, Any]) -> None:
    """Remove the empty schema that FastAPI uses for an unknown one."""
    if (content := response.get("content", {})).get("application/json") == {"schema": {}}:
        del content["application/json"]
    if not content:
        response.pop("content", None)


def _statuses(path: str, operation: dict[str, Any], *, needs_credential: bool) -> Iterator[int]:
    """Return an operation's error statuses: its own, and those implied by path and parameters."""
    yield from (int(status) for status in operation["responses"] if int(status) in ERRORS)
    parameters = operation.get("parameters", ())
    if "requestBody" in operation:
        yield from (400, 413, 415)
    if is_rest_path(path) or any(parameter["in"] == "query" for parameter in parameters):
        yield 400
    if any(parameter["in"] == "path" for parameter in parameters):
        yield 404
    if "{run_id}" in path:
        yield 410
    if not path.startswith(_STATELESS) or is_rest_path(path):
        yield from (500, 503)
    if needs_credential:
        yield from (401, 403, 429)


def _error(path: str, status: int) -> dict[str, Any]:
    if path in ("/a2a", MCP_PATH):
        content = _json(_RPC)
    elif is_rest_path(path):
        content = _json(_REST_ERROR)
    elif path.startswith("/v1/"):
        content = _json(_ref("Error"))
    else:
        content = {"application/problem+json": {"schema": _ref("Problem")}}
    names = ["Retry-After"] if status in (429, 503) else []
    if path in _ASKING and status in (409, 410, 429, 500, 502, 503, 504):  # the run has an id
        names += [*_RUN_HEADERS, "x-should-retry"]
    if status == 401:  # noqa: PLR2004 - the table above names it
        names.append("WWW-Authenticate")
    response = {"description": ERRORS[status], "content": content}
    return {**response, "headers": _header_refs(*names)} if names else response


def _header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


# A2A and MCP: their routes are built at the first request, and their bodies are theirs to say

_A2A = {"type": "object", "description": "A2A."}
_RPC = {"type": "object", "description": "JSON-RPC 2.0."}
_REST_ERROR = {
    "type": "object",
    "description": "`error` with `code`, `status`, `message` and `details`, as A2A has it.",
    "required": ["error"],
}
_EVENTS = {"schema": {"type": "string", "description": "Each `data:` is one."}}
_VERSION = {
    "name": "A2A-Version",
    "in": "header",
    "required": True,
    "description": "Without it a request is one of A2A 0.3, whose paths are under `/a2a/rest/v1`.",
    "schema": {"type": "string", "const": "1.0"},
}
_TASK_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The task's id, which is that of its run.",
    "schema": {"type": "string", "minLength": 1},
}
_METHODS = (  # path, HTTP method, operation, summary, method of A2A
    ("message:send", "post", "a2a_send", "Send a message", "SendMessage"),
    ("message:stream", "post", "a2a_stream", "Send a message", "SendStreamingMessage"),
    ("tasks", "get", "a2a_list", "List tasks", "ListTasks"),
    ("tasks/{id}", "get", "a2a_get", "Read a task", "GetTask"),
    ("tasks/{id}:cancel", "post", "a2a_cancel", "Cancel a task", "CancelTask"),
    ("tasks/{id}:subscribe", "get", "a2a_subscribe_get", "Follow a task", "SubscribeToTask"),
    ("tasks/{id}:subscribe", "post", "a2a_subscribe_post", "Follow a task", "SubscribeToTask"),
)
_MCP = {
    "summary": "Call a method of MCP",
    "description": "The agent as an MCP server (streamable HTTP, 2026-07-28 and the versions from "
    "2024-11-05 to 2025-11-25): a tool `ask` with a `message` and, optionally, a `session`.",
    "operationId": "mcp",
    "requestBody": {"required": True, "content": _json(_RPC)},
    "responses": {
        "200": {
            "description": "The response, or the events of a stream that ends with it.",
            "content": {**_json(_RPC), "text/event-stream": _EVENTS},
        },
        "202": {"description": "The notification is accepted."},
    },
}


def _a2a_paths() -> dict[str, Any]:
    card = {
        "summary": "Read the agent card",
        "description": "The A2A card of the agent, with an `ETag`. Clients of 0.3 find theirs at "
        "`/.well-known/agent.json`, or take `/a2a/v0.3` for the agent's base URL.",
        "operationId": "agent_card",
        "responses": {
            "200": {"description": "An A2A AgentCard.", "content": _json(_A2A)},
            "304": {"description": "The card has the `ETag` of `If-None-Match`."},
        },
    }
    call = {
        "summary": "Call a method of A2A",
        "description": "SendMessage, SendStreamingMessage, GetTask, ListTasks, CancelTask or "
        "SubscribeToTask of A2A 1.0, or what 0.3 has in their place. Errors of a method are "
        "JSON-RPC errors with status 200.",
        "operationId": "a2a",
        "requestBody": {"required": True, "content": _json(_RPC)},
        "responses": {
            "200": {
                "description": "The result, or the events of a stream.",
                "content": {**_json(_RPC), "text/event-stream": _EVENTS},
            }
        },
    }
    paths: dict[str, Any] = {CARD_PATH: {"get": card}, "/a2a": {"post": call}}
    for path, method, operation_id, summary, called in _METHODS:
        a2a_json = {"application/a2a+json": {"schema": _A2A}}
        has_events = path.endswith((":stream", ":subscribe"))
        content = {"text/event-stream": _EVENTS} if has_events else _json(_A2A)
        operation: dict[str, Any] = {
            "summary": summary,
            "description": f"{called} of A2A.",
            "operationId": operation_id,
            "parameters": [_VERSION, _TASK_ID] if "{id}" in path else [_VERSION],
            "responses": {"200": {"description": "As A2A has it.", "content": content}},
        }
        if path.startswith("message"):
            operation["requestBody"] = {"required": True, "content": _json(_A2A) | a2a_json}
        paths.setdefault(f"{REST_PATH}/{path}", {})[method] = operation
    return paths
