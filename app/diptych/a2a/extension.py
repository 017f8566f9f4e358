"""Diptych's A2A extension: context, call path, budget and usage beside a task (loop.md §5).

A caller sends its newest messages as a data part, and its call path, deadline, subject, call and
budget in the message's metadata. An agent reports usage and failures in the metadata of tasks and
statuses. Everything is keyed by `URI`, so other agents ignore it. Wire names are camel case like
A2A's own (specification, 5.5).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.struct_pb2 import Struct
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from diptych.core.budget import MAX_COUNT, UNLIMITED, Budget, encode_budget
from diptych.core.errors import InvalidRequest
from diptych.core.json_values import parent_value, usage_value
from diptych.core.messages import (
    JSON,
    FinishReason,
    JSONObject,
    Message,
    ParentCall,
    Usage,
    Used,
)
from diptych.core.text import well_formed

URI = "https://diptych.dev/a2a/extensions/delegation/v1"

MAX_MESSAGES = 50
MAX_CONTEXT_CHARS = 200_000  # well inside the 1 MiB that a pod takes as a body, even as UTF-8
MAX_PATH = 16
MAX_DEPTH = 5  # agents that a request may come through (loop.md §5)
MAX_URL_CHARS = 2048
MAX_LINE_CHARS = 512

LEASE_SECONDS = 60.0  # of our own delegations; a takeover takes some 15
MIN_LEASE, MAX_LEASE = 30.0, 86_400.0  # seconds


def _one_line(text: str) -> str:
    if not text.isprintable() or len(text) > MAX_LINE_CHARS:
        raise ValueError(f"must be one line of at most {MAX_LINE_CHARS} characters")
    return text


def _one_line_each(parent: ParentCall) -> ParentCall:
    for text in (parent.agent, parent.run_id, parent.call_id):
        _one_line(text)
    return parent


def _in_bounds(lease: float) -> float:
    if not MIN_LEASE <= lease <= MAX_LEASE:
        raise ValueError(f"must be from {MIN_LEASE:g} to {MAX_LEASE:g} seconds")
    return lease


_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Url = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARS)]


class _Amounts(BaseModel):
    """Amounts of a budget or of usage: counts, and money as a decimal string."""

    tokens: _Count | None = None
    cost: Annotated[Decimal, Field(ge=0, max_digits=21, decimal_places=12)] | None = None
    model_calls: _Count | None = None
    tool_calls: _Count | None = None
    steps: _Count | None = None


class _Tokens(BaseModel):
    prompt_tokens: _Count
    completion_tokens: _Count


def _read_amounts(value: object) -> dict[str, Any]:
    return _Amounts.model_validate(value).model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class DelegationMetadata:
    """The caller's metadata of a task.

    `path` holds card URLs, the caller's last. `deadline` is the caller's remaining time in seconds;
    with `deadline_pauses` it pauses while a call waits for somebody. The task is cancelled after
    `lease` seconds without a subscriber. `budget` covers the task and its children.
    """

    path: Annotated[tuple[_Url, ...], Field(max_length=MAX_PATH)] = ()
    deadline: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None
    subject: Annotated[str, AfterValidator(_one_line)] = ""
    parent: Annotated[ParentCall, AfterValidator(_one_line_each)] | None = None
    deadline_pauses: bool = False
    lease: Annotated[float, Field(strict=True), AfterValidator(_in_bounds)] | None = None
    budget: Annotated[Budget, BeforeValidator(lambda value: Budget(**_read_amounts(value)))] = (
        UNLIMITED
    )


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Usage of a task and its children so far, and why the task failed.

    `usage` counts tokens of all model calls, `used` everything that budgets limit.
    """

    usage: Usage | None = None
    code: str = ""
    used: Used | None = None


_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_METADATA = TypeAdapter(DelegationMetadata)


def to_wire(value: JSON) -> Any:  # noqa: ANN401 - JSON
    """Convert names to camel case, except below `content`, `arguments` and `schema`, which
    hold users' data.
    """
    return _renamed(value, lambda name: re.sub("_([a-z0-9])", lambda m: m[1].upper(), name))


def from_wire(value: JSON) -> Any:  # noqa: ANN401 - JSON
    """Convert names from camel case to snake case."""
    return _renamed(value, lambda name: re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name))


def _renamed(value: JSON, rename: Callable[[str], str]) -> JSON:
    match value:
        case dict():
            return {
                rename(k): v if k in ("content", "arguments", "schema") else _renamed(v, rename)
                for k, v in value.items()
            }
        case list():
            return [_renamed(each, rename) for each in value]
        case _:
            return value


def json_of(message: ProtobufMessage) -> Any:  # noqa: ANN401 - JSON
    """Convert a protobuf message to JSON; floats with whole values become integers.

    Raises `ValueError` for NaN and infinity.
    """
    return _with_integers(MessageToDict(message))


def _with_integers(value: Any) -> Any:  # noqa: ANN401 - JSON
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [_with_integers(item) for item in value]
        case dict():
            return {key: _with_integers(item) for key, item in value.items()}
        case _:
            return value


def metadata_under_uri(metadata: Struct) -> Any:  # noqa: ANN401 - JSON
    """Return the value under `URI` in a message's, task's or status's metadata, or None."""
    if URI not in metadata.fields:
        return None
    try:
        return from_wire(json_of(metadata.fields[URI]))
    except ValueError:
        return None


def under_uri(about: JSONObject) -> dict[str, Any]:
    """Return metadata with `about` under `URI`."""
    return {URI: to_wire(about)}


def context_value(messages: Sequence[Message]) -> JSONObject:
    """Return the newest messages that fit the extension's limits, oldest first, as JSON.

    Leaves out `system` messages, which are for the caller alone.
    """
    newest: list[JSON] = []
    chars_left = MAX_CONTEXT_CHARS
    for message in reversed([m for m in messages if m.role != "system"][-MAX_MESSAGES:]):
        chars_left -= len(message.content)
        if chars_left < 0:
            break
        newest.append({"role": message.role, "content": well_formed(message.content)})
    return {"messages": newest[::-1]}


def read_context(value: JSON) -> tuple[Message, ...]:
    """Read a data part keyed by `URI`. Raises `InvalidRequest`."""
    match value:
        case {"messages": list(entries)} if len(entries) <= MAX_MESSAGES:
            return tuple(map(_read_message, entries))
    raise _invalid(f'its data part must be {{"messages": [...]}}, at most {MAX_MESSAGES}')


def _read_message(entry: JSON) -> Message:
    match entry:
        case {"role": "user" | "assistant" as role, "content": str(content)}:
            return Message("user" if role == "user" else "assistant", content)
    raise _invalid('a message must be {"role": "user" | "assistant", "content": text}')


def metadata_value(metadata: DelegationMetadata) -> JSONObject:
    """Return the metadata of a message as JSON, without unknown fields."""
    value: dict[str, JSON] = {
        "path": list(metadata.path),
        "subject": metadata.subject or None,
        "deadline": metadata.deadline,
        "deadline_pauses": metadata.deadline_pauses or None,
        "lease": metadata.lease,
        "parent": parent_value(metadata.parent) if metadata.parent else None,
        "budget": encode_budget(metadata.budget) or None,
    }
    return {name: field for name, field in value.items() if field is not None}


def read_metadata(value: JSON) -> DelegationMetadata:
    """Read the metadata of a message, in snake case. Raises `InvalidRequest`."""
    if value is None:
        return DelegationMetadata()
    try:
        return _METADATA.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "its metadata"
        raise _invalid(f"`{where}`: {first['msg'].removeprefix('Value error, ')}") from error


def report_value(report: TaskReport) -> JSONObject:
    """Return a report as JSON, without unknown fields."""
    value: dict[str, JSON] = {}
    if report.usage is not None:
        value["usage"] = usage_value(report.usage)
    if report.code:
        value["code"] = report.code
    if report.used is not None:
        value["used"] = {k: v for k, v in encode_budget(report.used).items() if v not in (0, "0")}
    return value


def read_report(value: Any) -> TaskReport:  # noqa: ANN401 - JSON
    """Read the report in a task's or status's metadata, ignoring invalid fields."""
    about = value if isinstance(value, dict) else {}
    usage, code, used = about.get("usage"), about.get("code"), about.get("used")
    try:
        return TaskReport(
            None if usage is None else Usage(**_Tokens.model_validate(usage).model_dump()),
            code if isinstance(code, str) and _CODE.fullmatch(code) else "",
            None if used is None else Used(**_read_amounts(used)),
        )
    except ValidationError:
        return TaskReport()


def read_finish_reason(value: JSON) -> FinishReason:
    """Read an artifact's finish reason; unknown values become `stop`."""
    match value:
        case {"finish_reason": "length" | "content_filter" as reason}:
            return "length" if reason == "length" else "content_filter"
        case _:
            return "stop"


def _invalid(problem: str) -> InvalidRequest:
    return InvalidRequest(f"the extension {URI} is used wrongly: {problem}", param="message")
