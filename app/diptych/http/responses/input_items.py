"""Reads the input of a response: its items as the messages that a chat would bring.

Items that only repeat what this agent said of itself (`reasoning`) are passed over.

Not here: which parts a message may hold, and which calls need results (`http.messages`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from diptych.errors import InvalidRequest
from diptych.http.bodies import first_problem
from diptych.http.messages import CallerMessage, Conversation, read_conversation

Item = Mapping[str, Any]
_TEXTS = frozenset({"input_text", "output_text", "summary_text", "text"})
_FILE_FIELDS = ("file_data", "file_id", "file_url", "filename")


def read_input(
    given: str | Sequence[Item],
    instructions: str | None,
    inputs: Sequence[str],
    earlier: Sequence[Item] = (),
) -> Conversation:
    """Read an input as a conversation; `inputs` is what the model takes besides text.

    `earlier` are items of the response before it, whose calls an output may answer. Raises
    `InvalidRequest`.
    """
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    if instructions:
        _add(messages, places, {"role": "system", "content": instructions}, "instructions")
    for n, item in enumerate([*earlier, *items], -len(earlier)):
        place = f"input[{max(0, n)}]" if not isinstance(given, str) else "input"
        if (message := _message(item, place)) is not None:
            _add(messages, places, message, place)
    checked = [_checked(m, place) for m, place in zip(messages, places, strict=True)]
    if places in ([], ["instructions"]):
        raise InvalidRequest("there is no user message", param="input")
    return read_conversation(checked, inputs, places)


def _add(
    messages: list[dict[str, Any]], places: list[str], message: dict[str, Any], place: str
) -> None:
    """Add a message; calls that stand side by side are those of one."""
    calls = message.get("tool_calls")
    if calls and messages and messages[-1].get("tool_calls"):
        messages[-1]["tool_calls"] += calls
        return
    messages.append(message)
    places.append(place)


def _message(item: Item, place: str) -> dict[str, Any] | None:
    """Give an item as a message; None for one that says nothing to the model."""
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": _content(item.get("content"), place)}
        case "function_call":
            function = {name: item.get(name) for name in ("name", "arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            content = _content(item.get("output"), place)
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
        case "reasoning":
            return None
        case _:
            raise InvalidRequest(
                f"{place}.type: an item is a message, a function_call with its "
                "function_call_output, or reasoning; for what is on record send "
                "previous_response_id",
                param=f"{place}.type",
                code="unsupported_content",
            )


def _content(content: object, place: str) -> object:
    if not isinstance(content, list):
        return content
    return [_part(part, f"{place}.content[{n}]") for n, part in enumerate(content)]


def _part(part: object, place: str) -> object:
    """Give a part as a chat has it; what is none is left for the chat's rules to refuse."""
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
        return CallerMessage.model_validate(message, strict=True)
    except ValidationError as error:
        problem = first_problem(error)
        path = f"{place}.{problem.param}"
        text = problem.message.replace(str(problem.param), path, 1)
        raise InvalidRequest(text, param=path, code=problem.code) from error
