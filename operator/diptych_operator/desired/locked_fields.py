"""Fields of the pod template that Agents may not override: `agents.locked` of the chart. Pure.

A path is written as in Kubernetes' own messages: `spec.nodeSelector`, `metadata.labels[team]`,
`spec.containers[agent].env[HTTPS_PROXY]`. What stands in brackets is a key of a mapping or the name
of a list's entry, and may be a glob: `spec.containers[*].securityContext`.

A lock compares the result: an Agent may set only the platform's value.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from diptych_operator.desired.strategic_merge import MERGE_KEYS
from diptych_operator.resources.owner import ManifestError

_PATH = re.compile(r"(?:spec|metadata)(?:\.[A-Za-z][A-Za-z0-9]*|\[[^\[\]]+\])*")
_STEP = re.compile(r"\.?([A-Za-z][A-Za-z0-9]*)|\[([^\[\]]+)\]")
_EMPTY: tuple[object, ...] = (None, {}, [], "")


@dataclass(frozen=True, slots=True)
class LockedField:
    """A path in a pod template. `path` is its text, `steps` its field names and globs."""

    path: str
    steps: tuple[tuple[str, bool], ...]
    """Each with whether it is a glob, in brackets."""
    why: str


def locked_field(path: str, why: str = "") -> LockedField:
    """Read a path; `why` it is locked, if it does not stand in `agents.locked`.

    Raises `ValueError`, a sentence that quotes it.
    """
    if not _PATH.fullmatch(path):
        raise ValueError(
            f"{path!r} is no path of a pod template, such as spec.nodeSelector or "
            "spec.containers[agent].env[HTTPS_PROXY]"
        )
    steps = [(match[1] or match[2], match[1] is None) for match in _STEP.finditer(path)]
    why = why or f"the platform sets it for all Agents: agents.locked has {path}"
    return LockedField(path, tuple(steps), why)


def check_locked(
    before: Mapping[str, Any], after: Mapping[str, Any], locked: Iterable[LockedField], by: str
) -> None:
    """Raise `ManifestError` if a locked field differs; `by` is the manifest's field that did it.

    `before` is the pod template without the Agent's word, `after` with it.
    """
    for one in locked:
        held, wanted = (locked_values(template, one) for template in (before, after))
        changed = [path for path in {**held, **wanted} if held.get(path) != wanted.get(path)]
        if changed:
            field = _field_of_manifest(min(changed), by)
            sentence = f"{field} is locked ({one.why}); remove it from the manifest"
            raise ManifestError("FieldLocked", sentence)


def locked_values(template: Mapping[str, Any], locked: LockedField) -> dict[str, object]:
    """Return what a pod template has at a locked path, by the paths without globs."""
    return dict(_values(template, locked.steps, ""))


def _values(
    value: object, steps: tuple[tuple[str, bool], ...], path: str
) -> Iterator[tuple[str, object]]:
    """Return what stands at a path, by the paths without globs; what is empty is not there."""
    if not steps:
        if value not in _EMPTY:
            yield path, value
        return
    (name, is_glob), rest = steps[0], steps[1:]
    if not is_glob:
        if isinstance(value, Mapping):
            yield from _values(value.get(name), rest, f"{path}.{name}" if path else name)
        return
    field = re.split(r"[.\]]", path)[-1]
    for key, entry in _entries(value, field):
        if fnmatchcase(key, name):
            yield from _values(entry, rest, f"{path}[{key}]")


def _entries(value: object, field: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            key = MERGE_KEYS.get(field, "name")
            named = entry.get(key) if isinstance(entry, Mapping) else None
            yield str(number if named is None else named), entry


def _field_of_manifest(path: str, by: str) -> str:
    """Return in the manifest's words which field changed a path of the pod template."""
    own = "spec.containers[agent]"
    if by == "spec.container":
        return by + path.removeprefix(own) if path.startswith(own) else by
    return f"{by}.{path.removeprefix('metadata.')}" if by == "spec.metadata" else f"{by}.{path}"
