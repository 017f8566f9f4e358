"""A2A's paths in the OpenAPI document; their routes are built at their first request.

What the bodies hold is A2A's to say, so their schemas say no more than whose they are.
"""

from typing import Any

from diptych.http.rest_errors import REST_PATH

JSONRPC = {"type": "object", "description": "JSON-RPC 2.0, as the A2A specification has it."}
_A2A = {"type": "object", "description": "A2A."}
_A2A_BODY = {"application/a2a+json": {"schema": _A2A}}
_EVENTS = {
    "text/event-stream": {"schema": {"type": "string", "description": "Each `data:` is one."}}
}
REST_ERROR: dict[str, Any] = {
    "application/json": {
        "schema": {
            "type": "object",
            "description": "`error` with `code`, `status`, `message` and `details`, as A2A has it.",
            "required": ["error"],
        }
    }
}
_VERSION = {
    "name": "A2A-Version",
    "in": "header",
    "required": True,
    "description": "Without it a request is one of A2A 0.3, whose paths are under `/a2a/rest/v1`.",
    "schema": {"type": "string", "const": "1.0"},
}
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The task's id, which is that of its run.",
    "schema": {"type": "string", "minLength": 1},
}


def _rest(
    operation_id: str,
    summary: str,
    description: str,
    *,
    has_id: bool = False,
    content: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Describe an operation; `content` is that of its reply, if it is not a body of A2A."""
    errors: dict[str, Any] = {"400": {"description": "An error of A2A.", "content": REST_ERROR}}
    if has_id:
        errors["404"] = {"description": "There is no such task.", "content": REST_ERROR}
    about = {"description": "As A2A has it.", "content": content or _A2A_BODY}
    return {
        "summary": summary,
        "description": description,
        "operationId": operation_id,
        "parameters": [_VERSION, _ID] if has_id else [_VERSION],
        "responses": {"200": about, **errors, "413": {}, "415": {}, "500": {}, "503": {}},
    }


_MESSAGE = {
    "required": True,
    "content": {kind: {"schema": _A2A} for kind in ("application/json", "application/a2a+json")},
}
_SEND = "SendMessage of A2A. Gives the task when it has ended, or waits for a decision."
_SUBSCRIBE = "The task as it is, then its updates. A task that has ended is a 400."
_CANCEL = "CancelTask of A2A. A task that has ended is a 400."
_STREAM = "SendStreamingMessage of A2A."
_REST_PATHS = {
    "/message:send": {
        "post": _rest("a2a_send", "Send a message", _SEND) | {"requestBody": _MESSAGE}
    },
    "/message:stream": {
        "post": _rest("a2a_stream", "Send a message and follow its task", _STREAM, content=_EVENTS)
        | {"requestBody": _MESSAGE}
    },
    "/tasks": {"get": _rest("a2a_list", "List tasks", "ListTasks of A2A.")},
    "/tasks/{id}": {"get": _rest("a2a_get", "Read a task", "GetTask of A2A.", has_id=True)},
    "/tasks/{id}:cancel": {"post": _rest("a2a_cancel", "Cancel a task", _CANCEL, has_id=True)},
    "/tasks/{id}:subscribe": {
        method: _rest(
            f"a2a_subscribe_{method}", "Follow a task", _SUBSCRIBE, has_id=True, content=_EVENTS
        )
        for method in ("get", "post")
    },
}
A2A_PATHS: dict[str, Any] = {
    "/.well-known/agent-card.json": {
        "get": {
            "summary": "Read the agent card",
            "description": "The A2A card of the agent, with an `ETag`. Clients of 0.3 find theirs "
            "at `/.well-known/agent.json`, or take `/a2a/v0.3` for the agent's base URL.",
            "operationId": "agent_card",
            "responses": {
                "200": {
                    "description": "An A2A AgentCard.",
                    "content": {"application/json": {"schema": _A2A}},
                },
                "304": {"description": "The card has the `ETag` of `If-None-Match`."},
            },
        }
    },
    "/a2a": {
        "post": {
            "summary": "Call a method of A2A",
            "description": "SendMessage, SendStreamingMessage, GetTask, ListTasks, CancelTask or "
            "SubscribeToTask of A2A 1.0, or what 0.3 has in their place. Errors of a method are "
            "JSON-RPC errors with status 200.",
            "operationId": "a2a",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": JSONRPC}},
            },
            "responses": {
                "200": {
                    "description": "The result, or the events of a stream.",
                    "content": {
                        "application/json": {"schema": JSONRPC},
                        "text/event-stream": {
                            "schema": {"type": "string", "description": "Each `data:` is a reply."}
                        },
                    },
                },
                "413": {},
                "415": {},
            },
        }
    },
    **{f"{REST_PATH}{path}": item for path, item in _REST_PATHS.items()},
}
