"""Every place where an Agent can name a Secret, as the CRD and the Kubernetes API tell it."""

from collections.abc import Iterator
from typing import Any

from diptych_operator.resources.kinds import Object

_SELECTORS = {
    "SecretKeySelector": ("name",),
    "SecretEnvSource": ("name",),
    "SecretProjection": ("name",),
    "SecretReference": ("name",),
    "LocalObjectReference": ("name",),
}
"""Types of Kubernetes that hold the name of a Secret; in a PodSpec, LocalObjectReference is one."""


def manifest_places(schema: Object, path: str = "") -> Iterator[str]:
    """List the fields of a structural schema that are called for a Secret, such as `a[].b`."""
    for name, inner in schema.get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        if "secret" in name.lower():
            yield place
        else:
            yield from manifest_places(inner, place)
    if "items" in schema:
        yield from manifest_places(schema["items"], f"{path}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from manifest_places(values, f"{path}.*")


def pod_places(document: Object) -> set[str]:
    """List the fields of a PodSpec, in an OpenAPI document, that hold the name of a Secret."""
    schemas = document["components"]["schemas"]
    return set(_pod_places(schemas, "io.k8s.api.core.v1.PodSpec", ""))


def with_secret(place: str, secret: str) -> Object:
    """Make a mapping that names a Secret at a place; whatever is in a list has a name."""
    field, _, rest = place.partition(".")
    value: Any = with_secret(rest, secret) if rest else secret
    if field.endswith("[]"):
        return {field.removesuffix("[]"): [{"name": "x", **value}]}
    return {field: value}


def _pod_places(schemas: Object, kind: str, path: str) -> Iterator[str]:
    for name, schema in schemas[kind].get("properties", {}).items():
        place = f"{path}.{name}".lstrip(".")
        if "items" in schema:
            schema, place = schema["items"], f"{place}[]"
        refs = [schema, *schema.get("allOf", ())]
        found = next((ref["$ref"].rpartition("/")[2] for ref in refs if "$ref" in ref), "")
        if name == "secretName":
            yield place
        elif fields := _SELECTORS.get(found.rpartition(".")[2]):
            yield from (f"{place}.{field}" for field in fields)
        elif found and found != kind:
            yield from _pod_places(schemas, found, place)
