"""Encodes chat completions requests in an endpoint's dialect. Pure."""

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson

from diptych.core.messages import JSONObject, Message, NativeCall
from diptych.core.model_request import FunctionTool, ModelRequest
from diptych.core.rendering import joined, without_native_calls
from diptych.core.text import well_formed
from diptych.manifest.settings import ModelConfig
from diptych.models.dialect import MAX_TOKENS_NAMES, Dialect

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_SKIP_SIGNATURE = {"google": {"thought_signature": "skip_thought_signature_validator"}}


def request_fields(
    settings: ModelConfig, request: ModelRequest, dialect: Dialect, *, streamed: bool
) -> dict[str, Any]:
    """Return the fields of a request in the endpoint's dialect, except for its messages."""
    streamed = streamed and dialect.streams and (dialect.streams_tools or not request.tools)
    fields: dict[str, Any] = {"model": settings.name, "stream": streamed}
    if fields["stream"]:
        fields["stream_options"] = {"include_usage": True}
    parameters = _parameters(settings, request)
    limits = [parameters.pop(name) for name in MAX_TOKENS_NAMES if name in parameters]
    fields |= parameters
    if limits:
        limit, room = limits[0], dialect.reply_limit
        if room is not None and isinstance(limit, int):
            limit = min(limit, room)
        fields[dialect.max_tokens_name] = limit
    if request.output_schema is not None:
        kind = dialect.format_for(request.output_schema)
        if kind is not None:
            fields["response_format"] = _response_format(kind, request.output_schema)
    if request.tools:
        fields["tools"] = [_encode_tool(tool) for tool in request.tools]
    return {name: value for name, value in fields.items() if name not in dialect.dropped}


def encode_request(
    fields: Mapping[str, object],
    messages: Sequence[Message],
    dialect: Dialect | None = None,
    nonce: str = "",
) -> bytes:
    """Encode a request from its messages and its other, already encoded fields.

    `nonce` marks call results that the dialect writes as text.
    """
    dialect = dialect or Dialect()
    if dialect.writes_calls or not dialect.takes_tool_messages:
        messages = joined(without_native_calls(messages, nonce))
    elif dialect.has_single_calls:
        messages = [*_with_single_calls(messages)]
    if not dialect.takes_system_role:
        messages = _with_system_folded(messages)
    body = {**fields, "messages": [_encode_message(message, dialect) for message in messages]}
    try:
        return orjson.dumps(body)
    except TypeError:  # orjson refuses lone surrogates; a truncated tool result may contain one
        return orjson.dumps(_all_well_formed(body))


def _parameters(settings: ModelConfig, request: ModelRequest) -> dict[str, Any]:
    """Return the manifest's parameters, overridden by the request's."""
    manifest = {
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "reasoning_effort": settings.reasoning_effort,
    }
    if any(request.parameters.get(name) is not None for name in MAX_TOKENS_NAMES):
        del manifest["max_tokens"]
    merged = manifest | dict(request.parameters)
    return {name: value for name, value in merged.items() if value is not None}


def _response_format(kind: str, schema: JSONObject) -> dict[str, Any]:
    if kind == "json_object":
        return {"type": kind}
    described = {"name": "answer", "schema": schema, "strict": _is_strict(schema)}
    return {"type": kind, "json_schema": described}


def _is_strict(schema: object) -> bool:
    """Whether OpenAI accepts a schema as strict: closed, with every property required."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if "properties" in schema or schema.get("type") == "object":
        names = set(schema.get("properties") or ())
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != (
            names
        ):
            return False
    return all(map(_is_strict, schema.values()))


def _encode_tool(tool: FunctionTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _encode_message(message: Message, dialect: Dialect) -> dict[str, Any]:
    encoded: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        text = [{"type": "text", "text": message.content}] if message.content else []
        encoded["content"] = [*text, *message.parts]
    if message.calls:
        encoded["content"] = message.content or None
        signs = dialect.signs_calls and not message.calls[0].extra
        encoded["tool_calls"] = [_encode_call(call, dialect, signs) for call in message.calls]
    if dialect.wants_reasoning and message.role == "assistant":
        encoded["reasoning_content"] = message.reasoning or dialect.no_reasoning
    if message.call_id is not None:
        encoded["tool_call_id"] = _call_id(message.call_id, dialect)
    return encoded


def _encode_call(call: NativeCall, dialect: Dialect, signs: bool) -> dict[str, Any]:
    """Encode a call with its `extra_content`; `signs` if its message lacks a signature."""
    function = {"name": call.name, "arguments": _object_text(call.arguments)}
    encoded: dict[str, Any] = {
        "id": _call_id(call.id, dialect),
        "type": "function",
        "function": function,
    }
    if call.extra and dialect.takes_extra:
        encoded["extra_content"] = call.extra
    elif signs:
        encoded["extra_content"] = _SKIP_SIGNATURE
    return encoded


def _object_text(arguments: str) -> str:
    """Return arguments that servers can parse: an invalid call must not break later requests.

    vLLM and llama.cpp parse the arguments of the whole history, and fail the request if they can't.
    """
    with suppress(orjson.JSONDecodeError):
        if isinstance(orjson.loads(arguments), dict):
            return arguments
    return orjson.dumps({"invalid_arguments": well_formed(arguments)}).decode()


def _call_id(call_id: str, dialect: Dialect) -> str:
    if not dialect.has_short_ids or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _with_single_calls(messages: Sequence[Message]) -> Iterator[Message]:
    """Put each call into a message of its own, followed by its result."""
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        if not message.calls:
            yield message
        for place, call in enumerate(message.calls):
            yield replace(message, content="" if place else message.content, calls=(call,))
            if rest and rest[0].role == "tool":
                yield rest.popleft()


def _with_system_folded(messages: Sequence[Message]) -> list[Message]:
    """Prepend the system text to the first user message (loop.md §2)."""
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    others = [message for message in messages if message.role != "system"]
    if not system:
        return others
    for place, message in enumerate(others):
        if message.role == "user":
            text = f"{system}\n\n{message.content}" if message.content else system
            others[place] = Message("user", text, parts=message.parts)
            return others
    return [Message("user", system), *others]


def _all_well_formed(value: object) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping):
        return {well_formed(name): _all_well_formed(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_all_well_formed(inner) for inner in value]
    return value
