"""What a Kubernetes API server knows of kinds: their paths, defaults and validation."""

import json
from collections.abc import Iterable

from support.server_side_apply import ErrorResponse, Path, Stored

from diptych.manifest.documents import dotted_path
from diptych.manifest.pod_spec import pod_spec_mistakes
from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    EVENT,
    HTTP_ROUTE,
    INGRESS,
    JOB,
    LEASE,
    MCP_SERVER,
    MODEL_API,
    NAMESPACE,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    NamespacedName,
    Object,
    namespaced_name_of,
)

KINDS = (
    *(
        AGENT,
        AGENT_POOL,
        MCP_SERVER,
        MODEL_API,
        DEPLOYMENT,
        PERSISTENT_VOLUME_CLAIM,
        SERVICE,
        CONFIG_MAP,
        SERVICE_ACCOUNT,
        NETWORK_POLICY,
        POD_DISRUPTION_BUDGET,
        JOB,
        CRON_JOB,
        POD,
    ),
    *(NAMESPACE, LEASE, EVENT, HTTP_ROUTE, INGRESS),
)


def parse_path(path: str) -> tuple[Kind, NamespacedName, str]:
    parts = path.strip("/").split("/")
    group, version, rest = (
        ("", parts[1], parts[2:]) if parts[0] == "api" else (*parts[1:3], parts[3:])
    )
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    for kind in KINDS:
        if (kind.group, kind.version, kind.plural) == (group, version, rest[0]):
            name, subresource = [*rest[1:], "", ""][:2]
            return kind, (namespace, name), subresource
    raise ErrorResponse(404, "the server could not find the requested resource")


def discovery(path: str) -> Object | None:
    groups = {(kind.group, kind.version) for kind in KINDS}
    match path.strip("/").split("/"):
        case ["version"]:
            return {"gitVersion": "v1.34.0"}
        case ["api"]:
            return {"versions": ["v1"]}
        case ["apis"]:
            return {
                "groups": [
                    {
                        "name": group,
                        "versions": [{"version": version, "groupVersion": f"{group}/{version}"}],
                        "preferredVersion": {"version": version},
                    }
                    for group, version in groups
                    if group
                ]
            }
        case ["api", version]:
            group = ""
        case ["apis", group, version]:
            pass
        case _:
            return None
    found = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    return {
        "groupVersion": f"{group}/{version}",
        "resources": [
            {
                "name": kind.plural,
                "kind": kind.name,
                "singularName": kind.name.lower(),
                "namespaced": kind.is_namespaced,
                "verbs": ["list", "watch", "patch", "get"],
            }
            for kind in found
        ],
    }


def complete(kind: Kind, stored: Stored, before: Object | None, number: int) -> None:
    """Add what the server adds: uid, generation, defaults, managed fields."""
    content = stored.content
    metadata = content["metadata"]
    old = (before or {}).get("metadata", {})
    metadata["uid"] = old.get("uid") or f"uid-{number}"
    metadata["creationTimestamp"] = "2026-11-21T12:00:00Z"
    metadata["resourceVersion"] = old.get("resourceVersion", "0")
    _add_defaults(kind, content)
    changed = before is None or before.get("spec") != content.get("spec")
    metadata["generation"] = old.get("generation", 0) + changed
    managers = {manager for owners in stored.owners.values() for manager in owners}
    metadata["managedFields"] = [
        {
            "manager": manager.partition(":")[2].removesuffix("/status"),
            "operation": manager.partition(":")[0],
            "apiVersion": kind.api_version,
            "fieldsV1": _fields_v1(path for path, who in stored.owners.items() if manager in who),
        }
        for manager in sorted(managers)
    ]


def _fields_v1(paths: Iterable[Path]) -> Object:
    tree: Object = {}
    for path in paths:
        inner = tree
        for step in path:
            is_entry = isinstance(step, tuple)
            key = f"k:{json.dumps(dict(step), separators=(',', ':'))}" if is_entry else f"f:{step}"
            inner = inner.setdefault(key, {".": {}} if is_entry else {})
    return tree


def _add_defaults(kind: Kind, content: Object) -> None:
    spec = content.get("spec") or {}
    if kind is SERVICE:
        spec.setdefault("clusterIP", "10.96.0.1")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports", ()):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    if kind is DEPLOYMENT:
        pod = spec["template"]["spec"]
        pod.setdefault("restartPolicy", "Always")
        pod.setdefault("dnsPolicy", "ClusterFirst")
        for container in pod["containers"]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            for port in container.get("ports", ()):
                port.setdefault("protocol", "TCP")


def check_types(kind: Kind, content: Object) -> None:
    """Refuse to apply what has no such field or another type: with a 500, as the real API does."""
    if kind is not DEPLOYMENT or "spec" not in content:
        return
    path = ("spec", "template", "spec")
    for where, mistake in pod_spec_mistakes(content["spec"]["template"]["spec"], path):
        name = "/".join(namespaced_name_of(content))
        raise ErrorResponse(
            500,
            f"failed to create typed patch object ({name}; apps/v1, Kind=Deployment): "
            f".{dotted_path(where)}: {mistake}",
        )


def validate(kind: Kind, content: Object, before: Object | None) -> None:
    """Refuse an invalid object, as far as the operator can cause one."""
    spec, was = content.get("spec") or {}, (before or {}).get("spec") or {}
    lists = [("spec.ports", spec.get("ports", ()))] if kind is SERVICE else []
    if kind is DEPLOYMENT:
        for index, container in enumerate(spec["template"]["spec"]["containers"]):
            path = f"spec.template.spec.containers[{index}].ports"
            lists.append((path, container.get("ports", ())))
        if before and was.get("selector") != spec.get("selector"):
            raise ErrorResponse(422, "spec.selector: Invalid value: field is immutable")
    for path, ports in lists:
        names = [port["name"] for port in ports if "name" in port]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ErrorResponse(422, f'{path}[{index}].name: Duplicate value: "{name}"')
