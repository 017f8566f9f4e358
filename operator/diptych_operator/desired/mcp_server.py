"""The objects that a hosted MCPServer needs. Pure.

A server is reached by the Agents that use it and by the operator, and may reach everything but
link-local addresses: the destinations of tools are not known here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from diptych_operator.desired.child import (
    child_of,
    pod_disruption_budget,
    service_spec,
    with_digest,
)
from diptych_operator.desired.children import Platform
from diptych_operator.desired.deployment import (
    PRE_STOP,
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    PodDefaults,
    on_platform,
    overridden,
    probe,
    proxy_variables,
    rolling_deployment,
)
from diptych_operator.desired.drift import digest
from diptych_operator.desired.metadata import with_metadata
from diptych_operator.desired.network_policy import Rule, server_policy_spec
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    SERVICE,
    SERVICE_ACCOUNT,
    Object,
)
from diptych_operator.resources.mcp_server import McpServer

CONTAINER: Final = "server"
_FILE = "tools.py"
_FOLDER = "/etc/diptych/tools"
_SOURCE_DIGEST = "diptych.dev/source"
"""The annotation of pods with the digest of their Python code, so that a change rolls them."""
_GRACE_SECONDS = 30  # with the 20 s that `diptych mcp-server` gives calls under way
_IDS = ("runAsUser", "runAsGroup", "fsGroup")


def server_children(
    server: McpServer, users: Sequence[Rule], platform: Platform
) -> tuple[Object, ...]:
    """Return a server's children, in the order in which they are applied; none for a remote one.

    `users` are the NetworkPolicy peers that may reach it. Raises `ManifestError`.
    """
    if not server.is_hosted:
        return ()
    children = (
        *_source(server),
        child_of(server, SERVICE_ACCOUNT, automountServiceAccountToken=False),
        child_of(server, NETWORK_POLICY, spec=server_policy_spec(server, users, platform.network)),
        child_of(server, SERVICE, spec=_service_spec(server)),
        *pod_disruption_budget(server, server.replicas),
        child_of(server, DEPLOYMENT, spec=_deployment_spec(server, platform.pods)),
    )
    return tuple(with_digest(with_metadata(child, server, platform.metadata)) for child in children)


def _source(server: McpServer) -> Iterator[Object]:
    if "python" in server.source:
        data = {_FILE: server.source["python"]}
        yield child_of(server, CONFIG_MAP, server.child_name, data=data)


def _service_spec(server: McpServer) -> dict[str, Any]:
    """Keep a client's requests at one pod, as a server may have sessions."""
    return {
        **service_spec(server, server.port),
        "sessionAffinity": "ClientIP" if server.replicas > 1 else "None",
    }


def _deployment_spec(server: McpServer, defaults: PodDefaults) -> dict[str, Any]:
    metadata: dict[str, Any] = {"labels": server.child_labels}
    if "python" in server.source:
        metadata["annotations"] = {_SOURCE_DIGEST: digest({"python": server.source["python"]})}
    template = {"metadata": metadata, "spec": _pod_spec(server, defaults)}
    template = on_platform(template, defaults, is_our_image=server.runs_our_image)
    own = server.runtime.get("podTemplate") or {}
    template = overridden(template, server, own, defaults, "spec.runtime.podTemplate")
    return rolling_deployment(server, server.replicas, template, defaults.rollout)


def _pod_spec(server: McpServer, defaults: PodDefaults) -> dict[str, Any]:
    security = server.runtime.get("security") or {}
    ids = {name: security[name] for name in _IDS if name in security}
    storage = server.config.get("storage") or ()
    volumes = [{"name": "tmp", "emptyDir": {}}]
    if "python" in server.source:
        volumes.append({"name": "source", "configMap": {"name": server.child_name}})
    volumes += [{"name": f"storage-{n}", **mount["source"]} for n, mount in enumerate(storage)]
    return {
        "serviceAccountName": server.child_name,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        **RESTRICTED_POD,
        "securityContext": {**RESTRICTED_POD["securityContext"], **ids},
        "containers": [_container(server, defaults)],
        "volumes": volumes,
    }


def _container(server: McpServer, defaults: PodDefaults) -> dict[str, Any]:
    config, runtime = server.config, server.runtime
    restricted = RESTRICTED_CONTAINER["securityContext"]
    is_read_only = (runtime.get("security") or {}).get("readOnlyRootFilesystem", True)
    variables = {"env": list(_environment(server, defaults)), "envFrom": config.get("envFrom")}
    return {
        "name": CONTAINER,
        **_program(server, defaults),
        "ports": [{"name": "http", "containerPort": server.port, "protocol": "TCP"}],
        **{name: value for name, value in variables.items() if value},
        "resources": runtime.get("resources")
        or {
            "requests": {"cpu": "10m", "memory": "96Mi"},
            "limits": {"memory": "512Mi"},
        },
        **_probes(server),
        "lifecycle": PRE_STOP,
        **RESTRICTED_CONTAINER,
        "securityContext": {**restricted, "readOnlyRootFilesystem": is_read_only},
        "volumeMounts": list(_mounts(server)),
    }


def _environment(server: McpServer, defaults: PodDefaults) -> Iterator[Mapping[str, Any]]:
    """Yield the platform's proxy variables that the server does not set itself, and its own."""
    own = server.config.get("env") or ()
    names = {variable["name"] for variable in own}
    for name, value in proxy_variables(defaults.proxy).items():
        if name not in names:
            yield {"name": name, "value": value}
    yield from own


def _program(server: McpServer, defaults: PodDefaults) -> dict[str, Any]:
    source, config = server.source, server.config
    if image := source.get("containerImage"):
        arguments = {"args": config["arguments"]} if config.get("arguments") else {}
        return {"image": image["ref"], **arguments}
    where = ("--host", "::", "--port", str(server.port), "--path", config.get("path", "/mcp"))
    packages = [word for name in source.get("packages") or () for word in ("--package", name)]
    program = (
        ["--python", f"{_FOLDER}/{_FILE}", *packages]
        if "python" in source
        else ["--", *source["command"]]
    )
    return {
        "image": defaults.image,
        "imagePullPolicy": defaults.pull_policy,
        # The first on PATH, which has the packages of an image FROM ours.
        "command": ["python", "-m", "diptych"],
        "args": ["mcp-server", *where, *program],
    }


def _probes(server: McpServer) -> dict[str, Any]:
    def ask(path: str, **timing: int) -> dict[str, Any]:
        if not server.runs_our_image:
            return {"tcpSocket": {"port": server.port}, **timing}
        return probe(path, server.port, **timing)

    return {
        "startupProbe": ask("/health", periodSeconds=1, failureThreshold=120),
        "livenessProbe": ask("/health", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "readinessProbe": ask("/ready", periodSeconds=3, timeoutSeconds=3, failureThreshold=2),
    }


def _mounts(server: McpServer) -> Iterator[dict[str, Any]]:
    yield {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108
    if "python" in server.source:
        yield {"name": "source", "mountPath": _FOLDER, "readOnly": True}
    for n, mount in enumerate(server.config.get("storage") or ()):
        is_read_only = mount.get("permissions", "ReadOnly") == "ReadOnly"
        yield {"name": f"storage-{n}", "mountPath": mount["path"], "readOnly": is_read_only}
