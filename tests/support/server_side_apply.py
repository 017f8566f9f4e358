"""Server-side apply as the Kubernetes API does it: fields belong to managers, lists have keys."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from diptych_operator.desired.strategic_merge import MERGE_KEYS
from diptych_operator.resources.kinds import Object

Path: TypeAlias = tuple[Any, ...]
MADE_BY_SERVER = {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"}
ATOMIC = {"selector", "nodeSelector"}
KEYED = {**MERGE_KEYS, "conditions": "type"}
PORT_KEYS = ("containerPort", "port")  # of a container's ports, and of a Service's


class ErrorResponse(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


@dataclass
class Stored:
    """An object, and the managers of its fields: "Apply:" or "Update:", and the manager's name."""

    content: Object
    owners: dict[Path, set[str]] = field(default_factory=dict)


def _leaves(value: Any, path: Path = (), name: str = "") -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value and name not in ATOMIC:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key), key)
    elif isinstance(value, list) and value and all(_key(name, entry) for entry in value):
        for entry in value:
            yield from _leaves(entry, (*path, _key(name, entry)))
    else:
        yield path, value


def _key(name: str, entry: Any) -> tuple[tuple[str, Any], ...]:
    """Give the fields that identify an entry of a keyed list; none if the list is not keyed."""
    if not isinstance(entry, dict):
        return ()
    if name == "ports":
        number = next((key for key in PORT_KEYS if key in entry), None)
        protocol = ("protocol", entry.get("protocol", "TCP"))
        return ((number, entry[number]), protocol) if number else ()
    key = KEYED.get(name)
    return ((key, entry[key]),) if key and key in entry else ()


def _has(entry: Any, key: tuple[tuple[str, Any], ...]) -> bool:
    return all(entry.get(field, "TCP" if field == "protocol" else None) == v for field, v in key)


def _fields(content: Object) -> dict[Path, Any]:
    return {
        path: value
        for path, value in _leaves(content)
        if path[0] not in ("apiVersion", "kind")
        and path[:2] not in {("metadata", "name"), ("metadata", "namespace")}
        and not (path[0] == "metadata" and path[1] in MADE_BY_SERVER)
    }


def applied(found: Stored | None, content: Object, manager: str, *, force: bool) -> Stored:
    wanted = _fields(content)
    if found is None:
        return Stored(copy(content), {path: {manager} for path in wanted})
    owners = {path: set(who) for path, who in found.owners.items()}
    live = _fields(found.content)
    for path, value in wanted.items():
        others = owners.get(path, set()) - {manager}
        if path in live and live[path] != value and others:
            if not force:
                raise ErrorResponse(
                    409, f"Apply failed with a conflict with {', '.join(sorted(others))}"
                )
            owners[path] = set()
        owners.setdefault(path, set()).add(manager)
    result = copy(found.content)
    given_up = [p for p, who in owners.items() if manager in who and p not in wanted]
    for path in given_up:
        owners[path].discard(manager)
    ownerless = [path for path in given_up if not owners[path]]
    for path in ownerless:
        del owners[path]
    for path in ownerless:  # of an entry that nobody owns any more, the first deletes it whole
        _delete_at(result, _shortest(path, owners))
    for path, value in wanted.items():
        _set_at(result, path, value)
    return Stored(result, owners)


def after_edit(found: Stored | None, content: Object, manager: str) -> dict[Path, set[str]]:
    fields = _fields(content)
    if found is None:
        return {path: {manager} for path in fields}
    before = _fields(found.content)
    return {
        path: {manager} if before.get(path) != value else found.owners[path]
        for path, value in fields.items()
        if before.get(path) != value or path in found.owners  # a default belongs to nobody
    }


def _shortest(path: Path, owners: dict[Path, set[str]]) -> Path:
    """Give the path of the list entry in which no field is owned any more, or else the field's."""
    ends = [index + 1 for index, step in enumerate(path) if isinstance(step, tuple)]
    for end in ends:
        if not any(other[:end] == path[:end] for other in owners):
            return path[:end]
    return path


def _set_at(content: Any, path: Path, value: Any) -> None:
    for index, step in enumerate(path):
        last = index == len(path) - 1
        if isinstance(step, tuple):
            entry = next((e for e in content if _has(e, step)), None)
            if entry is None:
                entry = dict(step)
                content.append(entry)
            content = entry
        elif last:
            content[step] = copy(value)
        else:
            following = path[index + 1]
            if not isinstance(content.get(step), list if isinstance(following, tuple) else dict):
                content[step] = [] if isinstance(following, tuple) else {}
            content = content[step]


def _delete_at(content: Any, path: Path) -> None:
    parents = []
    for step in path[:-1]:
        parents.append((content, step))
        if isinstance(step, tuple):
            content = next((e for e in content if _has(e, step)), {})
        else:
            content = content.get(step, {})
    if isinstance(path[-1], tuple):
        content[:] = [e for e in content if not _has(e, path[-1])]
    else:
        content.pop(path[-1], None)
    for parent, step in reversed(parents):
        if not isinstance(step, tuple) and not parent.get(step):
            parent.pop(step, None)


def copy(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))
