"""Reads a request's answer schema and the caller's tools.

The schema comes as `response_format`, or as a caller's tool that `tool_choice` forces: then the
answer is written as a call of it. Optional caller tools are refused, ignored, or offered to the
model, as the manifest says.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from diptych.core.catalog import CALLER_SERVER, Tool
from diptych.core.errors import InvalidRequest
from diptych.core.messages import JSONObject
from diptych.core.output_schema import schema_problem
from diptych.manifest.settings import CallerTools

_MAX_NAME = 64  # characters of a tool's name, in OpenAI's API
_FUNCTION_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_NAME}}}")
_MAX_TOOLS, _MAX_TOOLS_CHARS = 64, 64 * 1024
_NAME, _VALUE = "form", "value"  # of a call of one of several tools; no words of a call of ours
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"const", "enum", "default", "examples"})
_BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_SAY_NOTHING: tuple[object, ...] = (None, [], "none", "auto")
_NO_TOOLS = (
    "this agent calls its own tools, and no others. Remove it; or force a call by tool_choice, "
    "or ask for an answer of that form; or let the agent's manifest say chat.callerTools: pass, "
    "for tools, or ignore"
)


class AskedForm(NamedTuple):
    """A chat's fields about its answer's form.

    `older` are the deprecated ones.
    """

    response_format: Mapping[str, Any] | None
    tools: Sequence[Any] | None
    tool_choice: object
    older: Mapping[str, object] = {}


class TypedOutput(NamedTuple):
    """The schema of an answer; with `tools` the answer is a call of one of these caller's tools.

    The model may call those `offered` before it answers.
    """

    schema: JSONObject | None = None
    tools: tuple[str, ...] = ()
    offered: tuple[Tool, ...] = ()


async def read_answer_form(
    asked: AskedForm, caller_tools: CallerTools
) -> tuple[TypedOutput, tuple[str, ...]]:
    """Return the answer's form, and the names of tool fields without effect.

    Raises `InvalidRequest`.
    """
    output, forced = TypedOutput(), None
    if asked.response_format is not None or asked.tools:
        output, forced = await asyncio.to_thread(_read_forms, asked)
    if forced:
        return forced, ()
    if caller_tools == "pass" and asked.tools and asked.tool_choice != "none":
        if asked.tool_choice not in (None, "auto"):
            raise InvalidRequest(
                "tool_choice must be auto, none, required, or a function by its name",
                param="tool_choice",
                code="invalid_value",
            )
        offered = await asyncio.to_thread(_read_tools, asked.tools)
        return output._replace(offered=offered), ()
    given = {"tools": asked.tools, "tool_choice": asked.tool_choice, **asked.older}
    if asked.tool_choice == "none":  # OpenAI's own way to say that the tools are not to be used
        del given["tools"]
    present = tuple(name for name, value in given.items() if value not in _SAY_NOTHING)
    refused = next((name for name in present if name in ("tools", "functions")), None)
    if refused and caller_tools != "ignore":
        raise InvalidRequest(f"{refused}: {_NO_TOOLS}", param=refused, code="unsupported_parameter")
    return output, present


def _read_forms(asked: AskedForm) -> tuple[TypedOutput, TypedOutput | None]:
    output = TypedOutput(_read_response_format(asked.response_format))
    return output, _read_forced_tools(asked.tools, asked.tool_choice)


def _read_response_format(response_format: Mapping[str, Any] | None) -> JSONObject | None:
    """Return the schema that a `response_format` asks for; None for text, `{}` for any object.

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


def _read_forced_tools(tools: Sequence[Any] | None, choice: object) -> TypedOutput | None:
    """Return the tools of which one must be called.

    None if no call is forced. Raises `InvalidRequest` for a missing tool or an invalid schema.
    """
    wanted: str | None = None
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            wanted = name
        case "required" if tools:
            pass
        case _:
            return None
    forms: dict[str, JSONObject] = {}
    for n, tool in enumerate(tools or ()):
        match tool:
            case {"function": {"name": str(found)}} if wanted in (None, found):
                path = f"tools[{n}].function"
                forms.setdefault(_checked(found, path), _parameters(tool["function"], path))
    if not forms:
        raise InvalidRequest(
            "tool_choice names a function that is not among the tools",
            param="tool_choice",
            code="invalid_value",
        )
    schema = next(iter(forms.values())) if len(forms) == 1 else _choice(forms)
    return TypedOutput(schema, tuple(forms))


def _read_tools(tools: Sequence[Any]) -> tuple[Tool, ...]:
    """Return the tools to offer to the model. Raises `InvalidRequest`."""
    if len(tools) > _MAX_TOOLS or len(json.dumps(tools)) > _MAX_TOOLS_CHARS:
        raise InvalidRequest(
            f"tools: at most {_MAX_TOOLS}, with {_MAX_TOOLS_CHARS // 1024} KiB of JSON together",
            param="tools",
            code="invalid_value",
        )
    found: dict[str, Tool] = {}
    for n, tool in enumerate(tools):
        path = f"tools[{n}].function"
        match tool:
            case {"type": "function", "function": {"name": str(name)} as function}:
                schema = dict(_parameters({**function, "description": None}, path))
            case _:
                message = f"tools[{n}] must be a function with a name: this agent takes no others"
                raise InvalidRequest(message, param=f"tools[{n}]", code="invalid_value")
        if not _FUNCTION_NAME.fullmatch(name) or name in found:
            raise InvalidRequest(
                f"{path}.name must be 1 to {_MAX_NAME} of A-Z a-z 0-9 _ -, and no other tool's",
                param=f"{path}.name",
                code="invalid_value",
            )
        found[name] = Tool(CALLER_SERVER, name, str(function.get("description") or ""), schema)
    return tuple(found.values())


def read_call(tools: Sequence[str], answer: str) -> tuple[str, str]:
    """Return the called tool's name and its arguments as JSON text.

    `answer` is valid for the schema from `_read_forced_tools`.
    """
    if len(tools) == 1:
        return tools[0], answer
    said = json.loads(answer)
    return said[_NAME], json.dumps(said[_VALUE], ensure_ascii=False)


def _choice(forms: Mapping[str, JSONObject]) -> JSONObject:
    """Return the schema of a call of one of several tools.

    Raises `InvalidRequest` if it is larger than a schema may be.
    """
    branches = [
        {
            "type": "object",
            "properties": {
                _NAME: {"const": name},
                _VALUE: _moved(form, f"#/anyOf/{n}/properties/{_VALUE}"),
            },
            "required": [_NAME, _VALUE],
            "additionalProperties": False,
        }
        for n, (name, form) in enumerate(forms.items())
    ]
    return check_schema({"anyOf": branches}, "tools")


def _moved(schema: Any, place: str, *, holds_schemas: bool = False) -> Any:  # noqa: ANN401 - JSON
    """Rewrite a schema's internal references for a new place in a document.

    With `holds_schemas` it is an object of schemas by name, such as `properties`.
    """
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, Mapping) or (not holds_schemas and "$id" in schema):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if holds_schemas:
            moved[key] = _moved(value, place)
        elif key in _REFERENCES and isinstance(value, str) and (value + "/").startswith("#/"):
            moved[key] = place + value[1:]
        elif key in _DATA or key == "$schema":
            moved |= {key: value} if key in _DATA else {}
        else:
            moved[key] = _moved(value, place, holds_schemas=key in _BY_NAME)
    return moved


def check_schema(schema: object, path: str) -> JSONObject:
    """Validate the JSON Schema at a path of the body.

    Raises `InvalidRequest`. A new schema costs about 1 ms for two fields: call it in a thread.
    """
    if not isinstance(schema, Mapping):
        raise _bad_schema(path, "must be a JSON Schema, as an object")
    if problem := schema_problem(schema):
        raise _bad_schema(path + problem.place, problem.text)
    return schema


def _parameters(function: Mapping[str, Any], path: str) -> JSONObject:
    """Return the schema of a function's arguments, which are an object."""
    parameters = function.get("parameters")
    schema = {} if parameters is None else check_schema(parameters, f"{path}.parameters")
    return _described({"type": "object", **schema}, function.get("description"))


def _checked(name: str, path: str) -> str:
    if not 0 < len(name) <= _MAX_NAME:
        path = f"{path}.name"
        raise InvalidRequest(f"{path} has 1 to {_MAX_NAME} characters", param=path)
    return name


def _described(schema: JSONObject, description: object) -> JSONObject:
    """Copy the description from beside a schema into it, unless it has one."""
    if isinstance(description, str) and description and "description" not in schema:
        return {**schema, "description": description}
    return schema


def _bad_schema(path: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{path} {problem}", param=path, code="invalid_json_schema")
