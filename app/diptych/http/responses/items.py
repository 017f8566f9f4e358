"""Input items of a response: converted to chat messages, looked up by id, and listed.

`reasoning` items are skipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from pydantic import ValidationError

from diptych.core import prompt
from diptych.core.codec import Record, event_of
from diptych.core.errors import InvalidRequest, RunNotFound
from diptych.core.events import RunRequested
from diptych.core.messages import Message
from diptych.http.caller_calls import CallerCall, Part, part_of
from diptych.http.errors import first_problem
from diptych.http.guarded_runs import GuardedRuns
from diptych.http.messages import CallerMessage, Conversation, read_conversation
from diptych.http.responses.state import ResponseState, fed

Item = Mapping[str, Any]
MAX_REFERRED = 100  # responses that the references of one input read
_TEXTS = frozenset({"input_text", "output_text", "summary_text", "text"})
_FILE_FIELDS = ("file_data", "file_id", "file_url", "filename")
_TYPES = (
    "an item is a message, a function_call with its function_call_output, reasoning, or the "
    "item_reference of one that this agent gave; for recorded items send previous_response_id"
)
_ID = re.compile(r"(?:msg|fc|fco)_(.{1,200})_(?:in)?[0-9]{1,9}")
_PASSED_OVER: Item = {"type": "reasoning"}
_OUR_OWN = frozenset({prompt.CONTINUE_ANSWER, prompt.CONTINUE_WITH_RESULTS})


def read_input(
    given: str | Sequence[object],
    instructions: str | None,
    inputs: Sequence[str],
    earlier: Sequence[Item] = (),
) -> Conversation:
    """Read an input as a conversation.

    `inputs` are the model's input kinds besides text. `earlier` are the previous response's items,
    whose calls an output may answer. Raises `InvalidRequest`.
    """
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    if instructions:
        _add(messages, places, {"role": "system", "content": instructions}, "instructions")
    for item, place in _placed(given, earlier):
        if (message := _message(item, place)) is not None:
            _add(messages, places, message, place)
    checked = [_checked(m, place) for m, place in zip(messages, places, strict=True)]
    if places in ([], ["instructions"]):
        raise InvalidRequest("there is no user message", param="input")
    return read_conversation(checked, inputs, places)


def item_type(item: Item) -> object:
    """Return an item's type; without `type` it is a message, or a reference if it has only an
    id.
    """
    if (kind := item.get("type")) is not None:
        return kind
    return "item_reference" if "id" in item and item.get("role") is None else "message"


def has_outputs(given: str | Sequence[object]) -> bool:
    """Whether an input has function outputs."""
    if isinstance(given, str):
        return False
    outputs = (isinstance(i, Mapping) and item_type(i) == "function_call_output" for i in given)
    return any(outputs)


def _placed(given: str | Sequence[object], earlier: Sequence[Item]) -> list[tuple[Item, str]]:
    """Return each item with its path in the body; a recorded item has its reference's path.

    Raises `InvalidRequest`.
    """
    if isinstance(given, str):
        if not given.strip():
            raise InvalidRequest("the message is empty", param="input")
        placed: list[tuple[Item, str]] = [({"role": "user", "content": given}, "input")]
    else:
        placed = []
        for n, item in enumerate(given):
            if not isinstance(item, Mapping):
                place = f"input[{n}]"
                message = f"{place} must be an object"
                raise InvalidRequest(message, param=place, code="invalid_type")
            placed.append((item, f"input[{n}]"))
    return [*((item, "previous_response_id") for item in earlier), *placed]


def _text(item: Item, field: str, place: str) -> str:
    """Return a non-empty string field. Raises `InvalidRequest`."""
    value = item.get(field)
    place = f"{place}.{field}"
    if value is None:
        raise InvalidRequest(f"{place} is missing", param=place, code="missing_required_field")
    if not isinstance(value, str) or not (value or field == "arguments"):
        raise InvalidRequest(f"{place} must be a text", param=place, code="invalid_type")
    return value


def _add(
    messages: list[dict[str, Any]], places: list[str], message: dict[str, Any], place: str
) -> None:
    """Add a message; adjacent calls are merged into one message."""
    calls = message.get("tool_calls")
    if calls and messages and messages[-1].get("tool_calls"):
        messages[-1]["tool_calls"] += calls
        return
    messages.append(message)
    places.append(place)


def _message(item: Item, place: str) -> dict[str, Any] | None:
    """Convert an item to a message; None for an item without meaning to the model."""
    match item_type(item):
        case "message":
            content = _content(item.get("content"), f"{place}.content")
            return {"role": item.get("role"), "content": content}
        case "function_call":
            call_id, name, arguments = (
                _text(item, field, place) for field in ("call_id", "name", "arguments")
            )
            function = {"name": name, "arguments": arguments}
            call = {"id": call_id, "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            content = _output(item.get("output"), f"{place}.output")
            call_id = _text(item, "call_id", place)
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case "reasoning":
            return None
        case _:
            place = f"{place}.type"
            raise InvalidRequest(f"{place}: {_TYPES}", param=place, code="unsupported_content")


def _output(output: object, place: str) -> str:
    """Return the output of a function. Raises `InvalidRequest`."""
    parts = output if isinstance(output, list) else [{"type": "text", "text": output}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts))
    message = f"{place} must be a text, or a list of texts (input_text)"
    raise InvalidRequest(message, param=place, code="invalid_type")


def _content(content: object, place: str) -> object:
    if not isinstance(content, list):
        return content
    return [_part(part, f"{place}[{n}]") for n, part in enumerate(content)]


def _part(part: object, place: str) -> object:
    """Convert a part to a chat's form; chat validation refuses unknown ones."""
    if not isinstance(part, Mapping):
        return part
    match part.get("type"):
        case str(kind) if kind in _TEXTS:
            return {"type": "text", "text": part.get("text")}
        case "input_image":
            if not isinstance(part.get("image_url"), str):
                place = f"{place}.image_url"
                message = f"{place} is missing: an image is a URL or a data: URL here"
                raise InvalidRequest(message, param=place, code="missing_required_field")
            detail = {"detail": part["detail"]} if part.get("detail") else {}
            return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
        case "input_file":
            fields = {name: part[name] for name in _FILE_FIELDS if part.get(name) is not None}
            return {"type": "file", "file": fields}
        case _:
            return part


def _checked(message: dict[str, Any], place: str) -> CallerMessage:
    try:
        return CallerMessage.model_validate(message)
    except ValidationError as error:
        problem = first_problem(error.errors())
        path = f"{place}.{problem.param}"
        text = problem.message.replace(str(problem.param), path, 1)
        raise InvalidRequest(text, param=path, code=problem.code) from error


# Items that are named by their ids


async def with_referred(given: Sequence[object], runs: GuardedRuns) -> list[object]:
    """Return an input's items with references replaced by the recorded items.

    Void text of a response is left out. Raises `InvalidRequest`.
    """
    read: dict[str, Mapping[str, Item]] = {}
    found: list[object] = []
    for n, item in enumerate(given):
        if isinstance(item, Mapping) and item_type(item) == "item_reference":
            found.append(await _referred(item.get("id"), f"input[{n}].id", runs, read))
        else:
            found.append(item)
    return found


async def _referred(
    item_id: object, place: str, runs: GuardedRuns, read: dict[str, Mapping[str, Item]]
) -> Item:
    if isinstance(item_id, str) and item_id.startswith("rs_"):
        return _PASSED_OVER
    named = _ID.fullmatch(item_id) if isinstance(item_id, str) else None
    if named and named[1] not in read:
        if len(read) == MAX_REFERRED:
            raise InvalidRequest(
                f"{place}: items of more than {MAX_REFERRED} responses are referred to; send "
                "previous_response_id",
                param=place,
            )
        read[named[1]] = await _referable(named[1], runs)
    item = read[named[1]].get(named[0]) if named else None
    if item is None:
        raise InvalidRequest(
            f"{place}: no response that you may read has an item with this id; send the item "
            "itself, or previous_response_id",
            param=place,
            code="item_not_found",
        )
    return item


async def _referable(response_id: str, runs: GuardedRuns) -> Mapping[str, Item]:
    """Return a response's items by id; empty for an unknown response."""
    try:
        found = await part_of(response_id, runs)
        records = await runs.records(found.entry.run_id)
    except RunNotFound:
        return {}
    items = input_items(records, found.part)
    state = fed(ResponseState("", *found), records)
    items += state.response()["output"]
    return {item["id"]: item for item in items} | dict.fromkeys(state.void_ids, _PASSED_OVER)


# The input of a run, as recorded


def input_items(records: Sequence[Record], part: Part) -> list[dict[str, Any]]:
    """Return the input items of a part: of the run's first record, or the results it began with.

    There are none for a resumed run.
    """
    if not records:
        return []
    first = records[0]
    if part.after:
        calls = {str(call.metadata["call_id"]): CallerCall(call).id for call in part.answered}
        outputs = [
            Message("tool", str(r.content), call_id=calls[str(r.metadata["call_id"])])
            for r in records
            if r.event_type in {"tool_result", "tool_error"} and r.metadata["call_id"] in calls
        ]
        return _numbered(outputs, part.reply_id(first.run_id))
    asked = cast("RunRequested", event_of(first))
    said = [*asked.earlier]
    if asked.parts or asked.message not in ("", *_OUR_OWN):
        said.append(Message("user", asked.message, parts=asked.parts))
    return _numbered(said, first.run_id)


def _numbered(messages: Sequence[Message], response_id: str) -> list[dict[str, Any]]:
    items = [item for message in messages for item in _listed(message)]
    return [{"id": f"{_prefix(i)}_{response_id}_in{n}", **i} for n, i in enumerate(items)]


def page_of(
    items: Sequence[Item], order: Literal["asc", "desc"], after: str | None, limit: int
) -> dict[str, Any]:
    """Return a page of items, in OpenAI's form. Raises `InvalidRequest` for an unknown `after`."""
    ordered = list(items if order == "asc" else reversed(items))
    start = 0
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            message = "after is the id of an item of this input"
            raise InvalidRequest(message, param="after", code="invalid_value")
        start = ids.index(after) + 1
    data = ordered[start : start + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": start + limit < len(ordered),
    }


def _listed(message: Message) -> Iterator[Item]:
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "status": "completed",
            "call_id": message.call_id,
            "output": message.content,
        }
        return
    if message.content or message.parts:
        yield {
            "type": "message",
            "status": "completed",
            "role": message.role,
            "content": _listed_content(message),
        }
    for call in message.calls:
        yield {
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }


def _listed_content(message: Message) -> list[Item]:
    if message.role == "assistant":
        text = {"type": "output_text", "text": message.content, "annotations": []}
        return [{**text, "logprobs": []}]
    texts = [{"type": "input_text", "text": message.content}] if message.content else []
    return [*texts, *map(_listed_part, message.parts)]


def _listed_part(part: Mapping[str, Any]) -> Item:
    """Convert a recorded non-text part from a chat's form."""
    match part["type"]:
        case "image_url":
            image = part["image_url"]
            return {
                "type": "input_image",
                "image_url": image.get("url"),
                "detail": image.get("detail", "auto"),
            }
        case "file":
            return {"type": "input_file", **part["file"]}
        case _:  # audio has the same form in both
            return dict(part)


def _prefix(item: Item) -> str:
    return {"message": "msg", "function_call": "fc", "function_call_output": "fco"}[item["type"]]
