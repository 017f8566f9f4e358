"""The input of a response, as the items that its run has on record.

System messages are not among them: the response has them as its `instructions`. In a session that
was known these are the items that were new.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from diptych.core import prompt
from diptych.core.codec import Record, event_of
from diptych.core.errors import InvalidRequest
from diptych.core.events import RunRequested
from diptych.core.messages import Message

Item = dict[str, Any]
_OUR_OWN = frozenset({prompt.CONTINUE_ANSWER, prompt.CONTINUE_WITH_RESULTS})


def input_items(records: Sequence[Record]) -> list[Item]:
    """Give the items that the first record of a run holds; of one that resumes another, none."""
    if not records:
        return []
    first = records[0]
    asked = cast("RunRequested", event_of(first))
    said = [*asked.earlier]
    if asked.parts or asked.message not in ("", *_OUR_OWN):
        said.append(Message("user", asked.message, parts=asked.parts))
    items = [item for message in said for item in _items(message)]
    return [{"id": f"{_prefix(i)}_{first.run_id}_in{n}", **i} for n, i in enumerate(items)]


def page_of(
    items: Sequence[Item], order: Literal["asc", "desc"], after: str | None, limit: int
) -> dict[str, Any]:
    """Give a page of items, in OpenAI's form. Raises `InvalidRequest` for an unknown `after`."""
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


def _items(message: Message) -> Iterator[Item]:
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
            "content": _content(message),
        }
    for call in message.calls:
        yield {
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }


def _content(message: Message) -> list[Item]:
    if message.role == "assistant":
        text: Item = {"type": "output_text", "text": message.content, "annotations": []}
        return [{**text, "logprobs": []}]
    texts = [{"type": "input_text", "text": message.content}] if message.content else []
    return [*texts, *map(_part, message.parts)]


def _part(part: Mapping[str, Any]) -> Item:
    """Give a part that is no text, which the record has in the form of a chat."""
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
