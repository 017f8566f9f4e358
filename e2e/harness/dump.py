"""All that the operator has made in a namespace, without what differs from time to time."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.kubectl import Kubectl

_KINDS = (
    "agents.diptych.dev,deployments,services,configmaps,serviceaccounts,networkpolicies,"
    "poddisruptionbudgets"
)
_CHANCE = {
    "clusterIP",
    "clusterIPs",
    "creationTimestamp",
    "deployment.kubernetes.io/revision",
    "generation",
    "kubectl.kubernetes.io/last-applied-configuration",
    "lastTransitionTime",
    "lastUpdateTime",
    "managedFields",
    "observedGeneration",
    "resourceVersion",
    "uid",
}

_UID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def normalised(kubectl: Kubectl) -> Mapping[str, Any]:
    """Give the objects by kind and name; of a Deployment its status is not the operator's."""
    found = json.loads(kubectl("get", _KINDS, "-o", "json"))["items"]
    kept = {}
    for item in found:
        name = item["metadata"]["name"]
        if name in ("default", "kube-root-ca.crt"):
            continue
        if item["kind"] != "Agent":
            item.pop("status", None)
        key = _without_chance(f"{item['kind']}/{name}", kubectl.namespace)
        kept[key] = _without_chance(item, kubectl.namespace)
    return kept


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Say at which places two dumps differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif one != other:
        yield f"{path}: {one!r} / {other!r}"


def _without_chance(value: Any, namespace: str) -> Any:
    match value:
        case dict():
            return {
                key: _without_chance(inner, namespace)
                for key, inner in value.items()
                if key not in _CHANCE
            }
        case list():
            # A NetworkPolicy is its pods', too, whose names are chance.
            lasting = [v for v in value if not (isinstance(v, dict) and v.get("kind") == "Pod")]
            return [_without_chance(inner, namespace) for inner in lasting]
        case str():
            # Digests are of contents that name the namespace.
            value = _UID.sub("UID", value.replace(namespace, "NAMESPACE"))
            value = re.sub(r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z", "TIME", value)
            return re.sub(r"\b[0-9a-f]{10,64}\b", "DIGEST", value)
        case _:
            return value
