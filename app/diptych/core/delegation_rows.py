"""What records say of delegations beside the call: the parent's call, and the child's task."""

from collections.abc import Mapping
from typing import Any, cast

from diptych.core.budget import decode_used, encode_budget
from diptych.core.messages import JSON, ChildRun, ParentCall, Usage


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
