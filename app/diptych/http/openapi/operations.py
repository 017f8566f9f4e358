"""Describes the operations: each constant is the keyword arguments of one route.

They are plain dictionaries, because every start of an agent pays for them.
"""

from typing import Any

from diptych.http.openapi.describing import (
    RUN_ERRORS,
    RUN_HEADERS,
    START_HEADERS,
    STORE_ERRORS,
    event_stream,
    json_reply,
    operation,
)


def _message_operation(operation_id: str, summary: str, effect: str) -> dict[str, Any]:
    """Describe a route that takes a message to a run; `effect` is what becomes of it."""
    return operation(
        operation_id,
        summary,
        f"{effect} The reply comes when it is on record, or is kept for a run that waits for its "
        "turn.",
        {202: json_reply("Run", "The run.")},
        body="MessageBody",
        headers=("Idempotency-Key",),
        errors=(409, 422, *RUN_ERRORS),
    )


_RUN_LINKS = {
    name: {"operationId": name, "parameters": {"run_id": "$response.body#/id"}}
    for name in (
        "read_run",
        "read_run_events",
        "steer_run",
        "follow_up_run",
        "cancel_run",
        "resume_run",
    )
}
"""What can be done with a run that was started, for tools that follow links."""

_COMPLETION = json_reply("ChatCompletion", "The answer.", (*RUN_HEADERS, "X-Diptych-Warning"))
_COMPLETION["content"] |= event_stream(
    "With `stream`: each `data:` is a ChatCompletionChunk, the last one `[DONE]`. The frame of a "
    "text has the `id` of its event. After a failure the last frame is an Error, without `[DONE]`.",
    'data: {"id":"run-1","object":"chat.completion.chunk","created":1767225600,"model":"helper",'
    '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    "data: [DONE]\n\n",
)
_EVENTS = {
    "description": "The events, up to the terminal one.",
    "headers": {"X-Run-ID": {"$ref": "#/components/headers/X-Run-ID"}},
    "content": event_stream(
        "Each `data:` is an Event; `event:` is its type and `id:` its seq. Frames without an `id` "
        "are live only: notices, `reset`, `handed_over`, `error`.",
        'event: completed\nid: 5\ndata: {"event_type":"completed","seq":5,"run_id":"run-1",'
        '"session_id":"session-1","timestamp":"2026-01-01T00:00:00Z","content":"",'
        '"metadata":{"finish_reason":"stop"}}\n\n',
    ),
}

COMPLETE_CHAT = operation(
    "complete_chat",
    "Complete a chat",
    "Starts a run and answers with what it gives, as OpenAI's API does.",
    {200: _COMPLETION},
    body="ChatBody",
    headers=START_HEADERS,
    errors=(404, 409, 410, 422, 429, *STORE_ERRORS, 502, 504),
)
LIST_MODELS = operation(
    "list_models",
    "List the models",
    "The agent is the only one.",
    {200: json_reply("ModelList", "The agent.")},
)
READ_MODEL = operation(
    "read_model",
    "Read a model",
    "Gives the agent, by its name.",
    {200: json_reply("Model", "The agent.")},
    errors=(404,),
)
START_RUN = operation(
    "start_run",
    "Start a run",
    "The run goes on whoever reads it. The reply comes when it is on record.",
    {
        202: json_reply("Run", "The run, or the one that the same key started before.")
        | {"links": _RUN_LINKS}
    },
    body="RunBody",
    headers=START_HEADERS,
    errors=(409, 422, *STORE_ERRORS),
)
LIST_RUNS = operation(
    "list_runs",
    "List runs",
    "Gives the newest `limit` runs, the oldest first.",
    {200: json_reply("RunList", "A page of runs.")},
    errors=STORE_ERRORS,
)
READ_RUN = operation(
    "read_run",
    "Read a run",
    "Gives the run with its outcome, or with its answer so far.",
    {200: json_reply("Run", "The run.")},
    errors=RUN_ERRORS,
)
READ_RUN_TREE = operation(
    "read_run_tree",
    "Read a run and the runs below it",
    "Gives the run, its delegations, and of each the run at the other agent, which this agent asks "
    "for it. A run that cannot be read has a `problem` in its place.",
    {200: json_reply("RunTree", "The tree.")},
    errors=(400, *RUN_ERRORS),
)
READ_RUN_EVENTS = operation(
    "read_run_events",
    "Read the events of a run",
    "Gives what is on record after an event, then what happens, until the run ends.",
    {200: _EVENTS},
    headers=("Last-Event-ID",),
    errors=RUN_ERRORS,
)
STEER_RUN = _message_operation(
    "steer_run",
    "Send a message to a run",
    "The message joins the run's conversation, at whatever replica the run is.",
)
FOLLOW_UP_RUN = _message_operation(
    "follow_up_run",
    "Queue a message for a run's next turn",
    "The message begins the run's next turn when this one has its answer.",
)
CLEAR_QUEUE = operation(
    "clear_queue",
    "Clear a run's queues",
    "Drops the messages that wait in the run, and gives them. Those that have joined its "
    "conversation stay.",
    {200: json_reply("ClearedQueue", "What was dropped.")},
    errors=(409, *RUN_ERRORS),
)
RESUME_RUN = operation(
    "resume_run",
    "Resume a run",
    "Takes up a run that failed or was aborted, with a new run of its session and no new message. "
    "No call is made again. A run is resumed once: a second request gives the same new run.",
    {202: json_reply("Run", "The new run; `resumes` is the id of the old one.")},
    body="ResumeBody",
    needs_body=False,
    headers=("Idempotency-Key", "traceparent"),
    errors=(409, 422, *RUN_ERRORS),
)
CANCEL_RUN = operation(
    "cancel_run",
    "Cancel a run",
    "Aborts the run, at whatever replica it is. A run that has ended stays as it is.",
    {
        200: json_reply("Run", "The run has ended."),
        202: json_reply("Run", "The run will end; that takes longer than 15 s."),
    },
    errors=RUN_ERRORS,
)
LIST_APPROVALS = operation(
    "list_approvals",
    "List approvals",
    "Gives the calls that wait for a decision, at whatever replica their runs are.",
    {200: json_reply("ApprovalList", "What waits.")},
    errors=(400, *STORE_ERRORS),
)
DECIDE = operation(
    "decide",
    "Decide on a call",
    "Decides on a call that waits, at whatever replica its run is; the first decision counts. The "
    "reply comes when it is on record.",
    {
        200: json_reply(
            "Approval",
            "The approval, decided; or `closed`, if the run was ended while it was decided below.",
        ),
        202: json_reply(
            "Approval",
            "The agent below that has the call has decided so; this run does not know it yet.",
        ),
    },
    body="DecisionBody",
    errors=(403, 409, 422, *RUN_ERRORS),
)
LIST_EVENTS = operation(
    "list_events",
    "Read the memory",
    "Gives the last `limit` events of a session, or of all; fewer if they are large: `before` "
    "gives the pages of earlier ones. An unknown session has none.",
    {200: json_reply("EventList", "The events.")},
    errors=STORE_ERRORS,
)
LIST_SESSIONS = operation(
    "list_sessions",
    "List sessions",
    "Gives the sessions that were used last, the oldest first; `total` counts all of them.",
    {200: json_reply("SessionList", "The sessions.")},
    errors=STORE_ERRORS,
)
DELETE_SESSION = operation(
    "delete_session",
    "Forget a session",
    "Deletes a session with all of its runs. It is refused while one of them is not finished.",
    {204: {"description": "The session is forgotten."}},
    errors=(404, 409, *STORE_ERRORS),
)
HEALTH = operation(
    "health",
    "Check that the process is alive",
    "Answers as long as the process serves at all.",
    {200: json_reply("Health", "It is alive.")},
)
READY = operation(
    "ready",
    "Check that the agent takes work",
    "Says what is missing, too, to who may `read`. It is ready once each tool server and agent has "
    "been tried.",
    {200: json_reply("Ready", "It takes work."), 503: json_reply("Ready", "It takes none now.")},
)
METRICS = operation(
    "metrics",
    "Read the metrics",
    "In Prometheus's text format.",
    {
        200: {
            "description": "The metrics.",
            "content": {"text/plain": {"schema": {"type": "string", "description": "Metrics."}}},
        }
    },
)
