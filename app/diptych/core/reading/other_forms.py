"""Converts calls in other models' JSON to our own form (loop.md §3, "Other models' forms").

Models reply in the form they were trained on. Such calls become `{"tool": …}` or `{"agent": …}`,
and are then checked like any other.
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
_BESIDE = frozenset(
    {"id", "type", "index", "tool_call_id", "call_id", "after"}
)  # allowed beside a name
_MESSAGE = frozenset({"role", "content", "refusal", "reasoning_content", "tool_calls"})
_TYPES = frozenset({None, "function", "function_call", "tool_call", "tool_use"})
_NAMESPACE = re.compile(r"(?:functions|tools|default_api)[.:]")
_NUMBER = re.compile(r":\d{1,4}\Z")  # index of a call, as in Kimi's `functions.read:0`


def offered_name(
    name: str, catalog: Catalog, *, may_be_away: bool = False
) -> tuple[str, bool] | None:
    """Return the tool or agent that a name means, and whether it is an agent; None if not offered.

    The prefixes `functions.` and `delegate_to_` and a number after a colon are removed unless the
    name is offered with them. Tools win over agents of the same name. Unavailable tools count as
    offered, as their calls get a result. With `may_be_away`, for texts that are almost certainly
    calls, so does any name while a server's tools are unknown.
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
    """Return a call in our own form: a delegation if the name is an agent's.

    The task is the argument `task`, else the only argument. Unknown names become tool calls, and
    are later rejected.
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
    """Convert the calls of a JSON value to our own form; None if there are none.

    Untagged JSON is data unless everything in it is a call of something offered, and it looks like
    neither a description nor a schema. In tags, names may be unknown or missing, and our own form
    is accepted. Ids become labels only if the reply is `labelled`; otherwise they are API ids.
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
    """Move a call's `parameters` to `arguments`, unless they are a schema."""
    name, given = call.get("tool"), call.get("parameters")
    if not isinstance(name, str) or given is None or call.get("arguments") is not None:
        return call
    arguments = _decoded(given)
    return call if _is_schema(name, arguments, catalog) else {**call, "arguments": arguments}


def is_labelled(values: Iterable[JSON]) -> bool:
    """Whether a reply refers to the ids of calls: by `${id}` or `"after"`."""
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
    """Return the keys of a call's name and of its arguments."""
    names = [key for key in (*_NAMES, "function") if isinstance(value.get(key), str)]
    fields = [key for key in _ARGUMENTS if key in value]
    if value.get("type") == "tool_use" and "input" in value:
        fields.append("input")
    return names, fields


def _is_plain(value: JSONObject, keys: set[str]) -> bool:
    return value.keys() <= keys | _BESIDE and value.get("type") in _TYPES


def _decoded(arguments: JSON) -> JSON:
    """Parse arguments given as a JSON string, as in OpenAI's API."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    value = decode_json(arguments)
    return value if isinstance(value, dict) and not is_deep(value) else arguments


def _is_schema(name: str, arguments: JSON, catalog: Catalog) -> bool:
    """Whether the "arguments" are a schema of parameters, as in a list of tools."""
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
"""Characters of code to parse; longer text is not a call."""

_DOTTED_NAME = re.compile(r"[\w.]{1,128}")


def calls_in_code(code: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse code that is one call or a list of calls; return names and arguments.

    Arguments must be keyword literals. A surrounding `print(…)` (Gemma) and a trailing `.call`
    (Llama 3) are removed. Code is never run.
    """
    source = code.strip()
    if len(source) > MAX_CODE or not source.endswith((")", "]")):
        return []
    for tried in (source, source.replace("\n", "\\n")):  # LFM puts line breaks inside strings
        try:
            body = ast.parse(tried, mode="eval").body
            return [_call(node) for node in (body.elts if isinstance(body, ast.List) else [body])]
        except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
            continue
    return []


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    """Parse one call. Raises `ValueError` or `TypeError` for anything else."""
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
    """Accepts `true`, `false` and `null`, as in JSON."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        words = {"true": True, "false": False, "null": None}
        return ast.Constant(words[node.id]) if node.id in words else node
