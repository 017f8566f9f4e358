"""Strategic merge: laying overrides over a pod's template. Pure.

Mappings are merged. Of lists that Kubernetes keys (containers by name, …) the entries with the
same key are merged and others are added; any other list is replaced whole.
"""

from collections.abc import Mapping
from typing import Any, Final

KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "ownerReferences": "uid",
}
"""By which field the entries of a list are told apart, as in server-side apply."""


class MergeError(ValueError):
    """Overrides that fit nothing; `str()` is a sentence that names the place."""


def merged(given: Mapping[str, Any], over: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Lay `over` over `given`; neither changes. Raises `MergeError`. `path` names the place."""
    result = dict(given)
    for name, value in over.items():
        result[name] = _laid(result.get(name), value, name, f"{path}.{name}")
    return result


def _laid(given: object, over: object, field: str, path: str) -> object:
    match given, over:
        case None, _ if field not in KEYS or not isinstance(over, list):
            return over
        case dict(), dict():
            return merged(given, over, path)
        case None | list(), list() if field in KEYS:
            return _merged_lists(given or [], over, KEYS[field], path)
        case (dict(), _) | (list(), _) if not isinstance(over, type(given)):
            wanted = "a mapping" if isinstance(given, dict) else "a list"
            raise MergeError(f"{path} must be {wanted}")
        case _:
            return over


def _merged_lists(given: list[Any], over: list[Any], key: str, path: str) -> list[Any]:
    result = {entry[key]: entry for entry in given}
    for index, entry in enumerate(over):
        if not isinstance(entry, dict) or key not in entry:
            raise MergeError(f"{path}[{index}] needs a {key}, by which it is merged")
        result[entry[key]] = merged(result.get(entry[key], {}), entry, f"{path}[{index}]")
    return list(result.values())
