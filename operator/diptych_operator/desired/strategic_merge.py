"""Strategic merge: lays a patch over a pod template. Pure.

Mappings are merged. In lists that Kubernetes keys (containers by name, …), entries with the same
key are merged and other entries are added. Any other list is replaced whole. So is a variable, or a
volume, that takes its value from another source: it can have one source only.
"""

from collections.abc import Mapping
from typing import Any, Final

from diptych_operator.resources.owner import ManifestError

MERGE_KEYS: Final[Mapping[str, str]] = {
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
"""For each keyed list, the field that identifies its entries, as in server-side apply."""


_ONE_SOURCE: Final = frozenset(("env", "volumes"))
"""Lists whose entries have one field beside their name: where the value comes from."""


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Merge `patch` into a copy of `base`. `path` names the patch in errors.

    Raises `ManifestError` for a patch that does not fit, with the field.
    """
    result = dict(base)
    for name, value in patch.items():
        result[name] = _merge_value(result.get(name), value, name, f"{path}.{name}")
    return result


def _merge_value(base: object, patch: object, field: str, path: str) -> object:
    match base, patch:
        case dict(), dict():
            return strategic_merge(base, patch, path)
        case None | list(), list() if field in MERGE_KEYS:
            return _merge_keyed_lists(base or [], patch, field, path)
        case (dict(), _) | (list(), _) if not isinstance(patch, type(base)):
            wanted = "a mapping" if isinstance(base, dict) else "a list"
            raise ManifestError("PodTemplateInvalid", f"{path} must be {wanted}")
        case _:
            return patch


def _merge_keyed_lists(base: list[Any], patch: list[Any], field: str, path: str) -> list[Any]:
    key = MERGE_KEYS[field]
    result = {entry[key]: entry for entry in base}
    for index, entry in enumerate(patch):
        if not isinstance(entry, dict) or key not in entry:
            sentence = f"{path}[{index}] needs a {key}, by which it is merged"
            raise ManifestError("PodTemplateInvalid", sentence)
        former = result.get(entry[key], {})
        if field in _ONE_SOURCE and not former.keys() & entry.keys() - {key}:
            former = {}
        result[entry[key]] = strategic_merge(former, entry, f"{path}[{index}]")
    return list(result.values())
