# ruff: noqa: INP001 - a script, no package
"""Writes `docs/reference/http.md` from the OpenAPI document: `python tools/reference/http_api.py`.

It is not called `http.py`, which would hide the standard library's `http` from scripts beside it.
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

from fastapi import FastAPI

from diptych.http.agent_profile import AgentProfile
from diptych.http.health import Readiness
from diptych.http.openapi import ERRORS
from diptych.ports.stores import Stores
from diptych.runs.service import RunService
from diptych.serve.app import AppDependencies, create_app

Schema: TypeAlias = dict[str, Any]

FILE = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
WIDTH = 120
_COMMON = set(ERRORS.values())
HEAD = """# HTTP reference

Written by `tools/reference/http_api.py` from the OpenAPI document; do not edit. Each agent serves
that document at `/openapi.json`. [HTTP](../http.md) explains streams, retries and idempotency.
"""


def application() -> FastAPI:
    """Return an agent's application; its OpenAPI document is the same for every agent."""
    stores = cast("Stores", type("NoStores", (), {"log": None, "sessions": None}))
    dependencies = AppDependencies(
        AgentProfile("", "", "1"),
        cast("RunService", None),
        stores,
        lambda: Readiness(is_ready=True),
        lambda: (b"", "text/plain"),
    )
    return create_app(dependencies, on_loopback=False)


def text() -> str:
    """Return the whole page."""
    built = application().openapi()
    lines = [HEAD, *_wrapped(built["info"]["description"].replace("\n\n", "\n")), ""]
    lines += ["## Operations", ""]
    for path, item in built["paths"].items():
        for method, operation in item.items():
            lines += _operation(method.upper(), path, operation, built["components"])
    lines += [*_errors(), "## Schemas", "", "A field without *required* may be left out.", ""]
    for name, schema in built["components"]["schemas"].items():
        lines += _schema(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _operation(method: str, path: str, operation: Schema, components: Schema) -> Iterator[str]:
    yield f"### {method} {path}"
    yield ""
    yield from _wrapped(f"{operation['summary']}. {operation['description']}")
    yield ""
    parameters = [_resolved(each, components) for each in operation.get("parameters", ())]
    for parameter in parameters:
        about = parameter.get("description") or "The id."
        yield from _item(f"`{parameter['name']}` ({parameter['in']}{_type(parameter)}): {about}")
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _item(f"body (`{media_type}`): {_name(content['schema'])}")
    if parameters or "requestBody" in operation:
        yield ""
    replies = {s: r for s, r in operation["responses"].items() if r["description"] not in _COMMON}
    for status, response in replies.items():
        bodies = [_body(*each) for each in response.get("content", {}).items()]
        headers = ", ".join(f"`{name}`" for name in response.get("headers", ()))
        parts = [response["description"], *bodies, f"Headers: {headers}." if headers else ""]
        yield from _item(f"**{status}** {' '.join(part for part in parts if part)}")
    if errors := [f"**{status}**" for status in operation["responses"] if status not in replies]:
        yield from _item(f"[errors](#errors): {', '.join(errors)}")
    yield ""


def _errors() -> Iterator[str]:
    """Give a section for what all operations have in common."""
    yield "## Errors"
    yield ""
    yield from _wrapped(
        "The body is an [Error](#error) under `/v1/`, else a [Problem](#problem). `Retry-After` "
        "gives the seconds after which another try may help. An error of a chat whose run was "
        "started names it in `X-Run-ID` and `X-Session-ID`. It has `x-should-retry: false` if a "
        "call of the run may have started, because a retry would repeat the call."
    )
    yield ""
    for status, description in ERRORS.items():
        yield from _item(f"**{status}** {description}")
    yield ""


def _body(media_type: str, content: Schema) -> str:
    schema = content["schema"]
    if media_type == "text/event-stream":
        return f"`{media_type}`: {schema['description']}"
    return f"`{media_type}`: {_name(schema)}."


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield from _wrapped(" ".join(schema.get("description", "").split()))
    yield ""
    for field, each in schema.get("properties", {}).items():
        required = ", *required*" if field in schema.get("required", ()) else ""
        about = " ".join(each.get("description", "").split())
        typed = _type({"schema": each}).removeprefix(", ")
        yield from _item(f"`{field}` ({typed}{required})" + (f": {about}" if about else ""))
    yield ""


def _type(parameter: Schema) -> str:
    """Give type, bounds and default of a parameter or field, each after a comma."""
    schema = parameter["schema"]
    parts = [_name(schema)]
    bounds = [schema.get(key) for key in ("minimum", "maximum")]
    if bounds[1] is not None:
        parts.append(f"{bounds[0]} to {bounds[1]:,}")
    elif bounds[0] is not None:
        parts.append(f"at least {bounds[0]}")
    if "maxItems" in schema:
        parts.append(f"{schema['minItems']} to {schema['maxItems']:,} items")
    if "pattern" in schema:
        parts.append(f"`{schema['pattern']}`")
    if schema.get("default") not in (None, ""):
        parts.append(f"default `{str(schema['default']).lower()}`")
    if parameter.get("required"):
        parts.append("*required*")
    return "".join(f", {part}" for part in parts)


def _name(schema: Schema) -> str:
    """Name the type of a value."""
    match schema:
        case {"$ref": ref}:
            name = ref.split("/")[-1]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": options}:
            return " or ".join(_name(option) for option in options)
        case {"enum": values}:
            return " \\| ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array", "items": items}:
            return f"list of {_name(items)}"
        case {"format": form}:
            return str(form)
        case {"type": name}:
            return str(name)
        case _:
            return "any value"


def _resolved(value: Schema, components: Schema) -> Schema:
    if "$ref" not in value:
        return value
    kind, name = value["$ref"].split("/")[-2:]
    found: Schema = components[kind][name]
    return found


def _item(content: str) -> Iterator[str]:
    yield from textwrap.wrap(
        f"- {content}",
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrapped(content: str) -> Iterator[str]:
    for paragraph in content.split("\n\n"):
        yield from textwrap.wrap(
            " ".join(paragraph.split()), WIDTH, break_long_words=False, break_on_hyphens=False
        )


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
