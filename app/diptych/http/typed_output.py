"""Reads the form that a caller wants the answer in: a JSON Schema, from whichever field has it.

A chat has three: `response_format`, and, where a client forces one tool of its own to be called,
that tool. Its call is the answer then, in another envelope (decision 70).

Not here: what is wrong with a schema (`loop.output_schema`), asking the model for such an answer
(`loop`), the envelope (`http.chat.completion`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diptych.errors import InvalidRequest
from diptych.loop.messages import JSONObject
from diptych.loop.output_schema import schema_problem

_MAX_NAME = 64  # characters of a tool's name, in OpenAI's API


class TypedOutput(NamedTuple):
    """The schema of an answer; `tool` is the tool of the caller whose call it is, if any."""

    schema: JSONObject | None = None
    tool: str | None = None


def read_response_format(response_format: Mapping[str, Any] | None) -> JSONObject | None:
    """Give the schema that a `response_format` asks for; None for text, `{}` for any object.

    Raises `InvalidRequest`.
    """
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            schema = response_format.get("schema")  # llama.cpp's server takes one, too
            return {} if schema is None else check_schema(schema, "response_format.schema")
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            checked = check_schema(schema, "response_format.json_schema.schema")
            return _described(checked, response_format["json_schema"].get("description"))
        case {"type": "json_schema"}:
            path = "response_format.json_schema.schema"
            raise InvalidRequest(f"{path} is missing", param=path, code="missing_required_field")
        case _:
            raise InvalidRequest(
                "response_format.type must be 'text', 'json_object' or 'json_schema'",
                param="response_format.type",
                code="invalid_value",
            )


def read_forced_tool(tools: Sequence[Any] | None, choice: object) -> TypedOutput | None:
    """Give the one tool that must be called; None if the model would have a choice.

    Raises `InvalidRequest` for a tool that is not there or has no valid schema.
    """
    wanted: str | None = None
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            wanted = name
        case "required" if tools and len(tools) == 1:
            pass
        case _:
            return None
    for n, tool in enumerate(tools or ()):
        match tool:
            case {"function": {"name": str(found)}} if wanted in (None, found):
                path = f"tools[{n}].function"
                return TypedOutput(_parameters(tool["function"], path), _checked(found, path))
    raise InvalidRequest(
        "tool_choice names a function that is not among the tools",
        param="tool_choice",
        code="invalid_value",
    )


def check_schema(schema: object, path: str) -> JSONObject:
    """Give a JSON Schema that was found at a path of the body. Raises `InvalidRequest`.

    A schema that was not seen before costs about 1 ms for every two fields: call it in a thread.
    """
    if not isinstance(schema, Mapping):
        raise _bad_schema(path, "must be a JSON Schema, as an object")
    if problem := schema_problem(schema):
        raise _bad_schema(path + problem.place, problem.text)
    return schema


def _parameters(function: Mapping[str, Any], path: str) -> JSONObject:
    """Give the schema of a function's arguments, which are an object."""
    parameters = function.get("parameters")
    schema = {} if parameters is None else check_schema(parameters, f"{path}.parameters")
    return _described({"type": "object", **schema}, function.get("description"))


def _checked(name: str, path: str) -> str:
    if not 0 < len(name) <= _MAX_NAME:
        path = f"{path}.name"
        raise InvalidRequest(f"{path} has 1 to {_MAX_NAME} characters", param=path)
    return name


def _described(schema: JSONObject, description: object) -> JSONObject:
    """Add what the caller says of a schema beside it, unless it says so itself."""
    if isinstance(description, str) and description and "description" not in schema:
        return {**schema, "description": description}
    return schema


def _bad_schema(path: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{path} {problem}", param=path, code="invalid_json_schema")
