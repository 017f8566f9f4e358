"""The Deployment of an agent, and the pods that it makes. Pure.

The pods pass Pod Security `restricted`. The resolved manifest and every key that it refers to are
files of one projected volume; a Secret or key that is missing is no obstacle to the start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from diptych_operator.desired.resolved_manifest import FILE, FOLDER
from diptych_operator.desired.strategic_merge import MergeError, merged
from diptych_operator.resources.agent import Agent, KeyRef
from diptych_operator.resources.kinds import PORT, Object, labels, selector_labels

CONTAINER = "agent"
FORMER_CONFIGS = "diptych.dev/former-configs"
"""The annotation with the ConfigMaps of earlier revisions, whose pods may still run."""

_VOLUME = "diptych"
_PRE_STOP_SECONDS = 5  # in which everybody learns that the pod is going, before it stops listening
_MIN_READY_SECONDS = 2  # until the nodes' proxies know a pod that has become ready
_RUN_SECONDS = 60  # that a pod gives its runs before it hands them over
_GRACE_SECONDS = _PRE_STOP_SECONDS + _RUN_SECONDS + 20  # and some for the hand-over
_RESOURCES = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """What the operator's own settings say of all pods; `template` is merged before the user's."""

    image: str
    pull_policy: str = "IfNotPresent"
    template: Mapping[str, Any] = field(default_factory=dict)


def deployment_spec(agent: Agent, config: str, defaults: PodDefaults) -> dict[str, Any]:
    """Give the Deployment's spec. Raises `MergeError` if the overrides do not fit."""
    return {
        "replicas": agent.replicas,
        "minReadySeconds": _MIN_READY_SECONDS,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": 600,
        "selector": {"matchLabels": selector_labels(agent.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": pod_template(agent, config, defaults),
    }


def pod_template(agent: Agent, config: str, defaults: PodDefaults) -> dict[str, Any]:
    """Give the pods' template, the operator's and the user's overrides merged in."""
    template = {"metadata": {"labels": labels(agent.name)}, "spec": _pod(agent, config, defaults)}
    template = merged(template, defaults.template, "the operator's pod template")
    template = merged(template, agent.spec.get("podTemplate") or {}, "spec.podTemplate")
    for label, value in selector_labels(agent.name).items():
        if template["metadata"]["labels"].get(label) != value:
            raise MergeError(f"spec.podTemplate.metadata.labels must not change {label}")
    return template


def config_in(deployment: Object | None) -> str | None:
    """Name the ConfigMap that a Deployment's pods are made with."""
    spec = _at(deployment or {}, "spec", "template", "spec")
    for volume in spec.get("volumes", ()):
        if volume.get("name") == _VOLUME:
            sources: list[Object] = _at(volume, "projected").get("sources") or [{}]
            name: str | None = _at(sources[0], "configMap").get("name")
            return name
    return None


def former_configs(deployment: Object | None) -> tuple[str, ...]:
    """Name the ConfigMaps of earlier revisions that have not been deleted yet."""
    annotations = _at(deployment or {}, "metadata", "annotations")
    return tuple(filter(None, annotations.get(FORMER_CONFIGS, "").split(",")))


def is_settled(deployment: Object | None) -> bool:
    """Say whether all pods are of the newest revision and can take work."""
    if deployment is None:
        return False
    metadata, spec, status = (deployment.get(k) or {} for k in ("metadata", "spec", "status"))
    wanted = spec.get("replicas", 1)
    return bool(
        status.get("observedGeneration", 0) >= metadata.get("generation", 0)
        and status.get("updatedReplicas", 0) == wanted
        and status.get("replicas", 0) == wanted
        and status.get("availableReplicas", 0) >= wanted
    )


def _pod(agent: Agent, config: str, defaults: PodDefaults) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "serviceAccountName": agent.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(agent, defaults)],
        "volumes": [
            {"name": _VOLUME, "projected": {"sources": _sources(config, agent.keys)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if agent.redis:  # whatever replicas says: scaling alone must not roll the pods
        pod["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_labels(agent.name)},
            }
        ]
    return pod


def _container(agent: Agent, defaults: PodDefaults) -> dict[str, Any]:
    own = agent.container
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": own.get("image", defaults.image),
        "imagePullPolicy": own.get("imagePullPolicy", defaults.pull_policy),
        "command": ["diptych"],
        "args": ["serve", f"{FOLDER}/{FILE}", "--host", "0.0.0.0", "--port", str(PORT)],  # noqa: S104
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": _environment(agent),
        "resources": own.get("resources", _RESOURCES),
        "startupProbe": _probe("/health", periodSeconds=1, failureThreshold=60),
        "livenessProbe": _probe("/health", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "readinessProbe": _probe("/ready", periodSeconds=3, timeoutSeconds=3, failureThreshold=2),
        "lifecycle": {"preStop": {"sleep": {"seconds": _PRE_STOP_SECONDS}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    if own.get("envFrom"):
        container["envFrom"] = own["envFrom"]
    return container


def _environment(agent: Agent) -> list[dict[str, Any]]:
    """Give the container's variables; the user's own come last and win."""
    ours = {"PUBLIC_URL": agent.url, "SHUTDOWN_GRACE_SECONDS": str(_RUN_SECONDS)}
    variables = {name: {"name": name, "value": value} for name, value in ours.items()}
    variables |= {variable["name"]: variable for variable in agent.container.get("env", ())}
    return list(variables.values())


def _probe(path: str, **timing: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": PORT, "scheme": "HTTP"}, **timing}


def _sources(config: str, keys: tuple[KeyRef, ...]) -> list[dict[str, Any]]:
    """Give the files of the volume: the resolved manifest, and every key that it refers to."""
    sources: list[dict[str, Any]] = [
        {"configMap": {"name": config, "items": [{"key": FILE, "path": FILE}]}}
    ]
    for (kind, name), refs in groupby(keys, lambda ref: (ref.kind, ref.name)):
        items = [{"key": ref.key, "path": ref.file} for ref in refs]
        field_name = "secret" if kind == "Secret" else "configMap"
        sources.append({field_name: {"name": name, "items": items, "optional": True}})
    return sources


def _at(content: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for name in path:
        content = content.get(name) or {}
    return content
