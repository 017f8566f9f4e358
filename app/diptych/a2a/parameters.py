"""The parameters of requests for tasks, read alike over both bindings.

protobuf passes over a state that it does not know, and the SDK's REST binding over a flag that is
neither true nor false: who asked for a few tasks got all of them. Here these are errors.
"""

import re
from typing import Any
from urllib.parse import urlencode

from a2a.types import GetTaskRequest, ListTasksRequest, TaskState
from a2a.utils.errors import InvalidParamsError
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from starlette.datastructures import QueryParams

UNKNOWN_STATE = -1
_PREFIX = "TASK_STATE_"
_NUMBER = re.compile(r"[0-9]{1,3}")
_FLAGS = {"true": True, "false": False}
_MAX_TEXT = 300  # characters of what is said about a wrong form


def read_query(query: QueryParams, message: ListTasksRequest | GetTaskRequest) -> str:
    """Give a query as protobuf writes what it says; names that `message` has not are left out.

    Raises `InvalidParamsError`.
    """
    fields: dict[str, Any] = {
        name: f for f in message.DESCRIPTOR.fields for name in (f.json_name, f.name)
    }
    seen: set[str] = set()
    for given, text in query.multi_items():
        if (field := fields.get(given)) is None:
            continue
        name = field.json_name
        if name in seen:
            raise InvalidParamsError(f"{name} stands there more than once")
        seen.add(name)
        try:
            ParseDict({name: _value(field, text)}, message)
        except ParseError as error:
            raise InvalidParamsError(f"{name}: {error}"[:_MAX_TEXT]) from error
    return urlencode({name: _text(value) for name, value in MessageToDict(message).items()})


def read_state(given: object) -> object:
    """Give the number of a state, or `UNKNOWN_STATE`; a list, an object or null as it is.

    The specification writes `status=working` in an example (11.5), and `TASK_STATE_WORKING` else.
    """
    states = dict(TaskState.items())
    if isinstance(given, str) and _NUMBER.fullmatch(given):
        given = int(given)
    match given:
        case str():
            name = given.upper().replace("-", "_").removeprefix(_PREFIX)
            return states.get(f"{_PREFIX}{name}", UNKNOWN_STATE)
        case int() | float():
            is_state = given in states.values() and not isinstance(given, bool)
            return int(given) if is_state else UNKNOWN_STATE
        case _:
            return given


def _value(field: FieldDescriptor, text: str) -> object:
    if field.type == FieldDescriptor.TYPE_BOOL:
        if text.lower() not in _FLAGS:
            raise InvalidParamsError(f"{field.json_name} is true or false")
        return _FLAGS[text.lower()]
    return read_state(text) if field.type == FieldDescriptor.TYPE_ENUM else text


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
