"""The project's own A2A extension: what a delegation holds besides its task (loop.md §5).

The newest messages of the caller's conversation are one data part; the call path, the seconds that
are left, the subject that the caller works for and the call that the task comes from are metadata
of the message. All are marked with `URI`, so that an agent that does not know the extension ignores
them.

The metadata of an answer's artifact say so under `URI` if it was cut off or filtered.

On the wire all names are in camel case, as A2A's own (specification, 5.5); see `to_wire`.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.a2a.amounts import read_amounts
from diptych.core.budget import UNLIMITED, Budget, encode_budget
from diptych.core.errors import InvalidRequest
from diptych.core.json_values import parent_value
from diptych.core.messages import JSON, FinishReason, JSONObject, Message, ParentCall
from diptych.core.text import well_formed

URI = "https://diptych.dev/a2a/extensions/delegation/v1"

MAX_MESSAGES = 50
MAX_CONTEXT_CHARS = 200_000  # well inside the 1 MiB that a pod takes as a body, even as UTF-8
MAX_PATH = 16
MAX_URL_CHARS = 2048

LEASE_SECONDS = 60.0  # that callers of ours ask for: a takeover takes some 15
MIN_LEASE, MAX_LEASE = 30.0, 86_400.0  # seconds; who waits says so every 10

MAX_SUBJECT_CHARS = 512
MAX_ID_CHARS = 256  # of the names by which a caller speaks of itself, its run and its call


@dataclass(frozen=True, slots=True)
class DelegationMetadata:
    """What a caller says of a task beside its text.

    `path` is the call path (card URLs, the caller last), `seconds` what the caller has left, None
    for no limit; `subject` is whom it works for, "" if it does not say, and `parent` its call. With
    `deadline_pauses` what the caller has left stands still while a call waits for approval.
    The task is to be cancelled when nobody is subscribed to it for `lease` seconds.
    `budget` is what the task may use, with its own children.
    """

    path: tuple[str, ...] = ()
    seconds: float | None = None
    subject: str = ""
    parent: ParentCall | None = None
    deadline_pauses: bool = False
    lease: float | None = None
    budget: Budget = UNLIMITED


def to_wire(value: JSON) -> Any:  # noqa: ANN401 - JSON
    """Convert names to camel case, but not below `content` or `arguments`: they are not ours."""
    return _renamed(value, lambda name: re.sub("_([a-z0-9])", lambda m: m[1].upper(), name))


def from_wire(value: JSON) -> Any:  # noqa: ANN401 - JSON
    """Convert names from camel case to snake case."""
    return _renamed(value, lambda name: re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name))


def _renamed(value: JSON, rename: Callable[[str], str]) -> JSON:
    match value:
        case dict():
            return {
                rename(k): v if k in ("content", "arguments") else _renamed(v, rename)
                for k, v in value.items()
            }
        case list():
            return [_renamed(each, rename) for each in value]
        case _:
            return value


def context_value(messages: Sequence[Message]) -> JSONObject:
    """Give the newest messages that fit the extension's limits, oldest first, as JSON.

    `system` messages are left out: they are meant for the caller alone.
    """
    newest: list[JSON] = []
    chars_left = MAX_CONTEXT_CHARS
    for message in reversed([m for m in messages if m.role != "system"][-MAX_MESSAGES:]):
        chars_left -= len(message.content)
        if chars_left < 0:
            break
        newest.append({"role": message.role, "content": well_formed(message.content)})
    return {"messages": newest[::-1]}


def metadata_value(metadata: DelegationMetadata) -> JSONObject:
    """Give the extension's metadata of a message as JSON; what is not known is left out."""
    value: dict[str, JSON] = {"path": list(metadata.path)}
    if metadata.subject:
        value["subject"] = metadata.subject
    if metadata.seconds is not None:
        value["deadline"] = metadata.seconds
        if metadata.deadline_pauses:
            value["deadline_pauses"] = True
    if metadata.lease is not None:
        value["lease"] = metadata.lease
    if metadata.parent is not None:
        value["parent"] = parent_value(metadata.parent)
    if metadata.budget:
        value["budget"] = encode_budget(metadata.budget)
    return value


def answer_metadata(finish_reason: str) -> JSONObject:
    """Give the metadata of an answer that was cut off (`length`) or filtered (`content_filter`)."""
    return {"finish_reason": finish_reason}


def read_finish_reason(value: JSON) -> FinishReason:
    """Read what the metadata of an artifact hold under `URI`; anything unknown is `stop`."""
    match value:
        case {"finish_reason": "length" | "content_filter" as reason}:
            return "length" if reason == "length" else "content_filter"
        case _:
            return "stop"


def read_context(value: JSON) -> tuple[Message, ...]:
    """Read a data part that is marked with `URI`. Raises `InvalidRequest`."""
    match value:
        case {"messages": list(entries)} if len(entries) <= MAX_MESSAGES:
            return tuple(_message(entry) for entry in entries)
        case {"messages": list(_)}:
            raise _invalid(f"it holds more than {MAX_MESSAGES} messages")
        case _:
            raise _invalid('its data part must be {"messages": [...]}')


def read_metadata(value: JSON) -> DelegationMetadata:
    """Read what the metadata of a message holds under `URI`. Raises `InvalidRequest`."""
    match value:
        case None:
            return DelegationMetadata()
        case {}:
            return DelegationMetadata(
                _path(value.get("path")),
                _seconds(value.get("deadline")),
                _subject(value.get("subject")),
                _parent(value.get("parent")),
                value.get("deadline_pauses") is True,
                _lease(value.get("lease")),
                _budget(value.get("budget")),
            )
        case _:
            raise _invalid("its metadata must be an object")


def _message(entry: JSON) -> Message:
    match entry:
        case {"role": "user" | "assistant" as role, "content": str(content)}:
            return Message("user" if role == "user" else "assistant", content)
        case _:
            raise _invalid('a message must be {"role": "user" | "assistant", "content": text}')


def _path(value: JSON) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_PATH:
        raise _invalid(f"`path` must be a list of at most {MAX_PATH} card URLs")
    urls = tuple(url for url in value if isinstance(url, str) and 0 < len(url) <= MAX_URL_CHARS)
    if len(urls) != len(value):
        raise _invalid(f"each entry of `path` must be a URL of at most {MAX_URL_CHARS} characters")
    return urls


def _budget(value: JSON) -> Budget:
    if value is None:
        return Budget()
    amounts = read_amounts(value)
    if amounts is None:
        raise _invalid("`budget` must hold whole numbers, and `cost` as a decimal string")
    return Budget(**amounts)


def _seconds(value: JSON) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid("`deadline` must be a number of seconds")
    if not math.isfinite(value) or value <= 0:
        raise _invalid("`deadline` must be more than 0 seconds")
    return float(value)


def _lease(value: JSON) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid("`lease` must be a number of seconds")
    if not MIN_LEASE <= value <= MAX_LEASE:
        raise _invalid(f"`lease` must be from {MIN_LEASE:g} to {MAX_LEASE:g} seconds")
    return float(value)


def _subject(value: JSON) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_SUBJECT_CHARS:
        raise _invalid(f"`subject` must be one line of at most {MAX_SUBJECT_CHARS} characters")
    return value


def _parent(value: JSON) -> ParentCall | None:
    match value:
        case None:
            return None
        case {"agent": str(agent), "run_id": str(run_id), "call_id": str(call_id)}:
            names = (agent, run_id, call_id)
            if all(name.isprintable() and len(name) <= MAX_ID_CHARS for name in names):
                return ParentCall(*names)
    raise _invalid(
        '`parent` must be {"agent": …, "run_id": …, "call_id": …}, each one line of at most '
        f"{MAX_ID_CHARS} characters"
    )


def _invalid(problem: str) -> InvalidRequest:
    return InvalidRequest(f"the extension {URI} is used wrongly: {problem}", param="message")
