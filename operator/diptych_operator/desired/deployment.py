"""The Deployment of an Agent, and its pod template. Pure.

The pods pass Pod Security `restricted`. The resolved manifest and every key that it refers to are
files of one projected volume; a missing Secret or key does not keep a pod from starting.

Not here: how far the rollout of a live Deployment is (`rollout`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from diptych_operator.desired.resolved_manifest import FILE, FOLDER
from diptych_operator.desired.strategic_merge import MergeError, strategic_merge
from diptych_operator.resources.agent import Agent, KeyRef
from diptych_operator.resources.kinds import PORT
from diptych_operator.resources.labels import child_labels, selector_labels

CONTAINER = "agent"
VOLUME = "diptych"

_PRE_STOP_SECONDS = 5  # until every node's proxy stops sending requests to a terminating pod
_MIN_READY_SECONDS = 2  # until every node's proxy sends requests to a ready pod
_RUN_SECONDS = 60  # for a terminating pod's runs to end, before it hands them over
_GRACE_SECONDS = _PRE_STOP_SECONDS + _RUN_SECONDS + 20  # 20 s for the hand-over
_RESOURCES = {
    "requests": {"cpu": "50m", "memory": "128Mi"},
    "limits": {"memory": "512Mi"},
}


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """The operator's settings for all pods; `template` is merged before `spec.podTemplate`."""

    image: str
    pull_policy: str = "IfNotPresent"
    template: Mapping[str, Any] = field(default_factory=dict)


def deployment_spec(agent: Agent, config_map: str, defaults: PodDefaults) -> dict[str, Any]:
    """Give the Deployment's spec. Raises `MergeError` if a pod template override does not fit."""
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
        "template": pod_template(agent, config_map, defaults),
    }


def pod_template(agent: Agent, config_map: str, defaults: PodDefaults) -> dict[str, Any]:
    """Give the pod template, with the operator's overrides and then the user's merged in.

    Raises `MergeError`.
    """
    pod = _pod_spec(agent, config_map, defaults)
    template = {"metadata": {"labels": child_labels(agent.name)}, "spec": pod}
    template = strategic_merge(template, defaults.template, "the operator's pod template")
    template = strategic_merge(template, agent.spec.get("podTemplate") or {}, "spec.podTemplate")
    for label, value in selector_labels(agent.name).items():
        if template["metadata"]["labels"].get(label) != value:
            raise MergeError(f"spec.podTemplate.metadata.labels must not change {label}")
    return template


def _pod_spec(agent: Agent, config_map: str, defaults: PodDefaults) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "serviceAccountName": agent.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(agent, defaults)],
        "volumes": [
            {"name": VOLUME, "projected": {"sources": _sources(config_map, agent.key_refs)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if agent.redis:  # whatever `replicas` is: scaling alone must not roll the pods
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
    overrides = agent.container
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": overrides.get("image", defaults.image),
        "imagePullPolicy": overrides.get("imagePullPolicy", defaults.pull_policy),
        "command": ["diptych"],
        "args": _serve_args(),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "env": _environment(agent),
        "resources": overrides.get("resources", _RESOURCES),
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
            {"name": VOLUME, "mountPath": FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    if overrides.get("envFrom"):
        container["envFrom"] = overrides["envFrom"]
    return container


def _serve_args() -> list[str]:
    """Serve beyond loopback, open to whoever the NetworkPolicy lets through: tokens are to come."""
    address = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
    return ["serve", f"{FOLDER}/{FILE}", *address, "--open"]


def _environment(agent: Agent) -> list[dict[str, Any]]:
    """Give the container's variables; those of `spec.container.env` override the operator's."""
    defaults = {"PUBLIC_URL": agent.url, "SHUTDOWN_GRACE_SECONDS": str(_RUN_SECONDS)}
    variables = {name: {"name": name, "value": value} for name, value in defaults.items()}
    variables |= {variable["name"]: variable for variable in agent.container.get("env", ())}
    return list(variables.values())


def _probe(path: str, **timing: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": PORT, "scheme": "HTTP"}, **timing}


def _sources(config_map: str, key_refs: tuple[KeyRef, ...]) -> list[dict[str, Any]]:
    """Give the volume's files: the resolved manifest, and every key that it refers to."""
    sources: list[dict[str, Any]] = [
        {"configMap": {"name": config_map, "items": [{"key": FILE, "path": FILE}]}}
    ]
    for (kind, name), refs in groupby(key_refs, lambda ref: (ref.kind, ref.name)):
        items = [{"key": ref.key, "path": ref.file} for ref in refs]
        field_name = "secret" if kind == "Secret" else "configMap"
        sources.append({field_name: {"name": name, "items": items, "optional": True}})
    return sources
