"""Describes the operations of `/v1/responses`; see `http.openapi.operations`."""

from diptych.http.openapi.describing import (
    RUN_ERRORS,
    RUN_HEADERS,
    START_HEADERS,
    STORE_ERRORS,
    event_stream,
    json_reply,
    operation,
)

_STREAM = event_stream(
    "With `stream`: each `data:` is an event of OpenAI's Responses API, and `event:` its `type`. "
    "`sequence_number` counts what the run's record gives, and is the same in every replay. "
    "`response.reasoning_text.delta` is told live, with the number of the event before it. If the "
    "stream cannot go on, an `error` is its last event.",
    'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":'
    '{"id":"run-1","object":"response","status":"queued"}}\n\n',
)
_RESPONSE = json_reply("Response", "The response.", RUN_HEADERS)
_CREATED = json_reply("Response", "The response.", (*RUN_HEADERS, "X-Diptych-Warning"))
_CREATED["content"] |= _STREAM
_READ = json_reply("Response", "The response.", RUN_HEADERS)
_READ["content"] |= _STREAM

CREATE_RESPONSE = operation(
    "create_response",
    "Create a response",
    "Starts a run and answers with what it gives, in the newer form of OpenAI's API; with "
    "`background` at once.",
    {200: _CREATED},
    body="ResponseBody",
    headers=START_HEADERS,
    errors=(404, 409, 410, 422, 429, *STORE_ERRORS, 502, 504),
)
READ_RESPONSE = operation(
    "read_response",
    "Read a response",
    "Gives any run as a response: as it is, or with `stream` its events on record, then live.",
    {200: _READ},
    errors=RUN_ERRORS,
)
LIST_INPUT_ITEMS = operation(
    "list_input_items",
    "List the input of a response",
    "Gives the items that the request for a run brought, without system messages; in a session "
    "that was known, those that were new.",
    {200: json_reply("InputItemList", "A page of items.", RUN_HEADERS)},
    errors=RUN_ERRORS,
)
CANCEL_RESPONSE = operation(
    "cancel_response",
    "Cancel a response",
    "Aborts the run, at whatever replica it is. A run that has ended stays as it is.",
    {200: _RESPONSE},
    errors=RUN_ERRORS,
)
DELETE_RESPONSE = operation(
    "delete_response",
    "Delete a response",
    "Forgets its run, and what that said in its session. It is refused while the run goes on.",
    {200: json_reply("DeletedResponse", "The run is forgotten.")},
    errors=(409, *RUN_ERRORS),
)
