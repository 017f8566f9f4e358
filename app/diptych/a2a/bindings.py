"""What both bindings of A2A ask of a request before the SDK reads it, and add to its reply."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from a2a.compat.v0_3.extension_headers import LEGACY_HTTP_EXTENSION_HEADER
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from starlette.requests import Request
from starlette.responses import Response

from diptych.a2a import extension
from diptych.http.repeated_keys import repeated_key_problem

_MAX_VALUES = 5_000
"""In a body: protobuf takes 20 to 40 µs for each, in which no other request is served."""

_FREE_FORM = frozenset({"data", "metadata"})
"""Fields whose JSON is the caller's own, also in its names."""

Endpoint = Callable[[Request], Awaitable[Any]]


async def json_problem(request: Request) -> str | None:
    """Say why a body is no JSON that all read alike, and that can be echoed; None if it is."""
    content = await request.body()
    try:
        content.decode()  # Python's reader takes UTF-16 and halves of surrogate pairs, too
        body = await request.json()
        if b"\\u" in content:  # half a surrogate pair cannot be echoed as UTF-8
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        return "the body is nested too deeply"
    except ValueError:
        return "the body is not JSON in UTF-8"
    if _has_many_values(content, body):
        return f"the body holds more than {_MAX_VALUES:,} values; send fewer"
    return await repeated_key_problem(content, body) or _two_names_problem(body)


def _has_many_values(content: bytes, body: object) -> bool:
    marks = content.count(b",") + content.count(b":") + content.count(b"[")
    if marks < _MAX_VALUES:  # one is before each value, but the first
        return False
    count, rest = 0, [body]
    while rest and count <= _MAX_VALUES:
        value = rest.pop()
        count += 1
        if isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return count > _MAX_VALUES


def _two_names_problem(body: object) -> str | None:
    """Say which field stands in one object by both of its names, `taskId` and `task_id`.

    The SDK takes the last of them in 1.0, and the first name in 0.3.
    """
    rest = [body]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest.extend(value)
        elif isinstance(value, dict):
            for name, field in value.items():
                if (other := _json_name(name)) != name and other in value:
                    return f"{name} and {other} are one field; send one"
                if name not in _FREE_FORM:
                    rest.append(field)
    return None


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(f"{other[:1].upper()}{other[1:]}" for other in others)


def name_extension(request: Request, response: Response, *, is_older: bool) -> None:
    """Name our extension in the reply if the caller activated it (specification, 4.6).

    Clients of A2A 0.3 may do that by the name that the header had then.
    """
    names = (HTTP_EXTENSION_HEADER, LEGACY_HTTP_EXTENSION_HEADER)
    for name in names if is_older else names[:1]:
        if extension.URI in get_requested_extensions(request.headers.getlist(name)):
            response.headers[name] = extension.URI
