"""Calls as other models and APIs write them in JSON (loop.md §3, "Other models' forms").

Models answer in the form that they were trained on. Each such form is turned into this loop's
own, `{"tool": …}` or `{"agent": …}`, before it is checked like any other call.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from diptych.core.catalog import DELEGATE_PREFIX, Catalog
from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.strict_json import decode_json, is_deep

_OWN_KEYS = frozenset({"tool", "agent", "calls"})
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_BESIDE = frozenset({"id", "type", "index", "tool_call_id", "call_id", "after"})  # a name's keys
_MESSAGE = frozenset({"role", "content", "refusal", "reasoning_content", "tool_calls"})
_TYPES = frozenset({None, "function", "function_call", "tool_call", "tool_use"})
_NAMESPACE = re.compile(r"(?:functions|tools|default_api)[.:]")
_NUMBER = re.compile(r":\d{1,4}\Z")  # the place of a call, as in Kimi's `functions.read:0`


def offered_name(
    name: str, catalog: Catalog, *, may_be_away: bool = False
) -> tuple[str, bool] | None:
    """Return the tool's or agent's name that a model means, and whether it is an agent's.

    None if nothing of that name is offered. The prefixes `functions.` and `delegate_to_` and a
    number after a colon are taken off where the name is not offered with them. A name of both a
    tool and an agent is the tool's. What is unavailable counts as offered: it has a result. So does
    any name, with `may_be_away`, while nobody knows which tools a server has that cannot be
    reached: for texts that are hardly anything but calls.
    """
    plain = _NUMBER.sub("", _NAMESPACE.sub("", name.strip(), count=1))
    for tried in (name, plain):
        if catalog.tool(tried):
            return tried, False
    for tried in (name, plain, plain.removeprefix(DELEGATE_PREFIX)):
        if catalog.agent(tried) or catalog.is_unavailable_agent(tried):
            return tried, True
    missing = catalog.missing_for_tool if may_be_away else catalog.known_missing
    return (plain, False) if missing(plain) else None


def to_own_form(name: str, arguments: JSON, catalog: Catalog) -> dict[str, Any]:
    """Write a call in this loop's form: a delegation if the name is an agent's.

    The task is the argument `task`, else the only argument if that is a text. A name that is not
    offered stays a tool's, and is refused as unknown.
    """
    offered = offered_name(name, catalog, may_be_away=True)
    if offered is None:
        return {"tool": name, "arguments": arguments}
    if not offered[1]:
        return {"tool": offered[0], "arguments": arguments}
    return {"agent": offered[0], "task": _task(arguments)}


def calls_in(
    value: JSON, catalog: Catalog, *, tagged: bool = False, labelled: bool = False
) -> list[JSONObject] | None:
    """Return the calls of a JSON value in another form, in this loop's form; None if it has none.

    Untagged JSON is data unless everything in it is a call of something offered, and nothing in it
    speaks against that: a description, or a schema in the place of arguments. Between tags the
    name need not be offered, and may be missing; our own form is a call there too. Ids are labels
    only if the reply is `labelled`: else they are those that an API gives to each call.
    """
    if isinstance(value, list):
        found = [calls_in(v, catalog, tagged=tagged, labelled=labelled) for v in value]
        return None if not found or None in found else [c for some in found if some for c in some]
    if not isinstance(value, Mapping):
        return None
    if not _OWN_KEYS.isdisjoint(value):
        return [value] if tagged else None
    match value:
        case {"tool_calls": list(inner)} if tagged or value.keys() <= _MESSAGE:
            return calls_in(inner, catalog, tagged=tagged, labelled=labelled)
        case {"function": Mapping() as inner} if tagged or _is_plain(value, {"function"}):
            calls = calls_in(inner, catalog, tagged=tagged, labelled=labelled)
        case _:
            calls = (_tagged if tagged else _untagged)(value, catalog)
    marks = {key: value[key] for key in ("id", "after") if labelled and key in value}
    return calls and [{**marks, **call} for call in calls]


def with_arguments(call: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return a call in this loop's form whose arguments stand under `parameters` as one of ours."""
    name, given = call.get("tool"), call.get("parameters")
    if not isinstance(name, str) or given is None or call.get("arguments") is not None:
        return call
    arguments = _decoded(given)
    return call if _is_schema(name, arguments, catalog) else {**call, "arguments": arguments}


def is_labelled(values: Iterable[JSON]) -> bool:
    """Whether something in a reply refers to the id of a call: `${id}`, or `"after"`."""
    unvisited = list(values)
    while unvisited:
        match unvisited.pop():
            case str() as text if "${" in text:
                return True
            case list() as items:
                unvisited.extend(items)
            case Mapping() as fields:
                if "after" in fields:
                    return True
                unvisited.extend(fields.values())
            case _:
                pass
    return False


def _untagged(value: JSONObject, catalog: Catalog) -> list[JSONObject] | None:
    names, fields = _keys(value)
    if len(names) != 1 or len(fields) != 1 or not _is_plain(value, {names[0], fields[0]}):
        return None
    name, arguments = str(value[names[0]]), _decoded(value[fields[0]])
    if not isinstance(arguments, Mapping | None):
        return None
    if not offered_name(name, catalog, may_be_away=True):
        return None
    if fields[0] == "parameters" and _is_schema(name, arguments, catalog):
        return None
    return [to_own_form(name, arguments, catalog)]


def _tagged(value: JSONObject, catalog: Catalog) -> list[JSONObject] | None:
    names, fields = _keys(value)
    if names:
        arguments = _decoded(value[fields[0]]) if fields else {}
        return [to_own_form(str(value[names[0]]), arguments, catalog)]
    by_name = [name for name, inner in value.items() if isinstance(inner, Mapping)]
    if by_name and len(by_name) == len(value):  # Apertus: {"read": {…}}
        return [to_own_form(name, value[name], catalog) for name in by_name]
    return None


def _keys(value: JSONObject) -> tuple[list[str], list[str]]:
    """Return the keys that hold a call's name and its arguments."""
    names = [key for key in (*_NAMES, "function") if isinstance(value.get(key), str)]
    fields = [key for key in _ARGUMENTS if key in value]
    if value.get("type") == "tool_use" and "input" in value:
        fields.append("input")
    return names, fields


def _is_plain(value: JSONObject, keys: set[str]) -> bool:
    return value.keys() <= keys | _BESIDE and value.get("type") in _TYPES


def _decoded(arguments: JSON) -> JSON:
    """Read arguments that are a JSON text, as OpenAI's API has them."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    value = decode_json(arguments)
    return value if isinstance(value, dict) and not is_deep(value) else arguments


def _is_schema(name: str, arguments: JSON, catalog: Catalog) -> bool:
    """Whether the "arguments" are a tool's description of its parameters, as in a list of tools."""
    if not isinstance(arguments, Mapping):
        return False
    if isinstance(arguments.get("properties"), Mapping):
        mark = "properties"
    elif arguments.get("type") == "object":  # of a tool without parameters
        mark = "type"
    else:
        return False
    tool = catalog.tool(name)
    known = tool.input_schema.get("properties") if tool else None
    return not (isinstance(known, Mapping) and mark in known)


def _task(arguments: JSON) -> JSON:
    if not isinstance(arguments, Mapping):
        return arguments
    if "task" in arguments or len(arguments) != 1:
        return arguments.get("task")
    return next(iter(arguments.values()))


MAX_CODE = 20_000
"""Characters of code that are looked at; a longer text is no call."""

_DOTTED_NAME = re.compile(r"[\w.]{1,128}")


def calls_in_code(code: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and arguments of one call, or of a list of calls, that is all of the code.

    The arguments are literals with names. `print(…)` around a call is taken off, as Gemma writes
    it, and so is `.call`, as Llama 3 writes it. Code is never run.
    """
    source = code.strip()
    if len(source) > MAX_CODE or not source.endswith((")", "]")):
        return []
    for tried in (source, source.replace("\n", "\\n")):  # LFM breaks lines inside its strings
        try:
            body = ast.parse(tried, mode="eval").body
            return [_call(node) for node in (body.elts if isinstance(body, ast.List) else [body])]
        except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
            continue
    return []


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """Read one call. Raises `ValueError` or `TypeError` for anything else."""
    match node:
        case ast.Call(func=ast.Name(id="print"), args=[inner], keywords=[]):
            return _call(inner)
        case ast.Call(func=function, args=[], keywords=keywords):
            name = ast.unparse(function).removesuffix(".call")
            literals = {k.arg: ast.literal_eval(_Words().visit(k.value)) for k in keywords}
            arguments = decode_json(json.dumps(literals))
            is_plain = _DOTTED_NAME.fullmatch(name) and None not in literals  # as of `**arguments`
            if is_plain and isinstance(arguments, dict):
                return name, arguments
    raise ValueError("no call with literals of JSON as named arguments")


class _Words(ast.NodeTransformer):
    """Reads `true`, `false` and `null` as JSON has them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node
