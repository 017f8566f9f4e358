"""What records say of delegations beside the call: the parent's call, and the child's task."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from diptych.core.budget import decode_used, encode_budget
from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.messages import JSON, ChildRun, Message, NativeCall, ParentCall, Usage


def parent_value(parent: ParentCall | None) -> JSON:
    """Write the call that a run comes from; None if it comes from none."""
    if parent is None:
        return None
    return {"agent": parent.agent, "run_id": parent.run_id, "call_id": parent.call_id}


def read_parent(stored: Mapping[str, Any] | None) -> ParentCall | None:
    """Read it back."""
    if stored is None:
        return None
    return ParentCall(stored["agent"], stored["run_id"], stored["call_id"])


def child_value(child: ChildRun) -> JSON:
    """Write the task of a delegation; what is not known is left out."""
    about: dict[str, JSON] = {
        "task_id": child.task_id,
        "state": child.state,
        "code": child.code,
        "text": child.text,
    }
    known: dict[str, JSON] = {name: value for name, value in about.items() if value}
    if child.usage is not None:
        known["usage"] = usage_value(child.usage)
    if child.used is not None:
        known["used"] = encode_budget(child.used)
    return {"url": child.url, **known}


def read_child(stored: Mapping[str, Any] | None) -> ChildRun | None:
    """Read it back."""
    if stored is None:
        return None
    names = ("task_id", "state", "code", "text")
    usage = read_usage(stored["usage"]) if "usage" in stored else None
    used = decode_used(stored["used"]) if "used" in stored else None
    known = {name: stored[name] for name in names if name in stored}
    return ChildRun(stored["url"], usage=usage, used=used, **known)


def usage_value(usage: Usage) -> dict[str, JSON]:
    """Write tokens."""
    tokens = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    return cast("dict[str, JSON]", tokens)


def read_usage(stored: Mapping[str, int]) -> Usage:
    """Read tokens back."""
    return Usage(stored["prompt_tokens"], stored["completion_tokens"])


def encode_catalog(catalog: Catalog) -> dict[str, Any]:
    """Give the catalog as JSON. What is None is left out, as version 0.1 did not know it."""
    return asdict(catalog, dict_factory=_without_none)


def decode_catalog(stored: Mapping[str, Any]) -> Catalog:
    """Read what `encode_catalog` gave, in this version or an earlier one."""
    return Catalog(
        tuple(Tool(**tool) for tool in stored["tools"]),
        tuple(Peer(**{**peer, "skills": tuple(peer["skills"])}) for peer in stored["agents"]),
        tuple(_decode_unavailable(entry) for entry in stored["unavailable"]),
    )


def _without_none(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if value is not None}


def _decode_unavailable(stored: Mapping[str, Any]) -> Unavailable:
    names = stored.get("tools")
    return Unavailable(**{**stored, "tools": None if names is None else tuple(names)})


def encode_message(message: Message) -> dict[str, JSON]:
    """Give a message as a JSON object."""
    stored: dict[str, JSON] = {"role": message.role, "content": message.content}
    if message.calls:
        stored["calls"] = encode_calls(message.calls)
    if message.call_id is not None:
        stored["call_id"] = message.call_id
    if message.parts:
        stored["parts"] = list(message.parts)
    if message.results:
        stored["results"] = [list(place) for place in message.results]
    if message.keeps is not None:
        stored["keeps"] = message.keeps
    if message.reasoning:
        stored["reasoning"] = message.reasoning
    if message.sources:
        stored["sources"] = list(message.sources)
    return stored


def decode_message(stored: Mapping[str, Any]) -> Message:
    """Read a message back. Raises `LookupError` or `TypeError` if it is none."""
    return Message(
        stored["role"],
        stored["content"],
        decode_calls(stored.get("calls", ())),
        stored.get("call_id"),
        tuple(stored.get("parts", ())),
        tuple((start, end) for start, end in stored.get("results", ())),
        stored.get("keeps"),
        stored.get("reasoning", ""),
        tuple(stored.get("sources", ())),
    )


def encode_calls(calls: tuple[NativeCall, ...]) -> list[JSON]:
    """Give native calls as JSON objects."""
    return [_encode_call(call) for call in calls]


def decode_calls(stored: Sequence[Mapping[str, Any]]) -> tuple[NativeCall, ...]:
    """Read native calls back."""
    return tuple(
        NativeCall(call["id"], call["name"], call["arguments"], call.get("extra"))
        for call in stored
    )


def _encode_call(call: NativeCall) -> dict[str, JSON]:
    stored: dict[str, JSON] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return stored if call.extra is None else {**stored, "extra": call.extra}
