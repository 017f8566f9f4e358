"""The Deployment of an Agent, and its pod template. Pure.

The pods pass Pod Security `restricted`. The resolved manifest, the access file, a token for each
peer and every key that the manifest refers to are files of one projected volume; a missing Secret
or key does not keep a pod from starting.

Not here: how far the rollout of a live Deployment is (`rollout`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from diptych_operator.desired.access import access_source, token_sources
from diptych_operator.desired.resolved_manifest import FILE, FOLDER
from diptych_operator.desired.strategic_merge import MergeError, strategic_merge
from diptych_operator.resources.agent import Agent, PeerRef
from diptych_operator.resources.kinds import METRICS_PORT, PORT, Object
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


def deployment_spec(
    agent: Agent, config_map: str, defaults: PodDefaults, peers: Sequence[PeerRef]
) -> dict[str, Any]:
    """Give the Deployment's spec. Raises `MergeError` if a pod template override does not fit.

    `peers` are the Agents that this one may delegate to: its pods get a token for each.
    """
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
        "template": pod_template(agent, config_map, defaults, peers),
    }


def pod_template(
    agent: Agent, config_map: str, defaults: PodDefaults, peers: Sequence[PeerRef] = ()
) -> dict[str, Any]:
    """Give the pod template, with the operator's overrides and then the user's merged in.

    Raises `MergeError`.
    """
    pod = _pod_spec(agent, _sources(agent, config_map, peers), defaults)
    template = {"metadata": {"labels": child_labels(agent.name)}, "spec": pod}
    template = strategic_merge(template, defaults.template, "the operator's pod template")
    template = strategic_merge(template, agent.spec.get("podTemplate") or {}, "spec.podTemplate")
    for label, value in selector_labels(agent.name).items():
        if template["metadata"]["labels"].get(label) != value:
            raise MergeError(f"spec.podTemplate.metadata.labels must not change {label}")
    return template


def _pod_spec(agent: Agent, sources: list[Object], defaults: PodDefaults) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "serviceAccountName": agent.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(agent, defaults)],
        "volumes": [
            {"name": VOLUME, "projected": {"sources": sources}},
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
        "args": _serve_args(agent),
        "ports": [
            {"name": "http", "containerPort": PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
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


def _serve_args(agent: Agent) -> list[str]:
    """Serve beyond loopback; open to everybody only if the manifest says so."""
    address = ["--host", "0.0.0.0", "--port", str(PORT)]  # noqa: S104
    return ["serve", f"{FOLDER}/{FILE}", *address, *(["--open"] if agent.is_open else [])]


def _environment(agent: Agent) -> list[dict[str, Any]]:
    """Give the container's variables; those of `spec.container.env` override the operator's."""
    defaults = {
        "PUBLIC_URL": agent.url,
        "SHUTDOWN_GRACE_SECONDS": str(_RUN_SECONDS),
        "METRICS_PORT": str(METRICS_PORT),
    }
    variables = {name: {"name": name, "value": value} for name, value in defaults.items()}
    variables |= {variable["name"]: variable for variable in agent.container.get("env", ())}
    return list(variables.values())


def _probe(path: str, **timing: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": PORT, "scheme": "HTTP"}, **timing}


def _sources(agent: Agent, config_map: str, peers: Sequence[PeerRef]) -> list[Object]:
    """Give the volume's files: the resolved manifest, who may call, tokens for peers, and keys."""
    sources: list[Object] = [
        {"configMap": {"name": config_map, "items": [{"key": FILE, "path": FILE}]}},
        *([] if agent.is_open else [access_source(agent)]),
        *token_sources(peers),
    ]
    for (kind, name), refs in groupby(agent.key_refs, lambda ref: (ref.kind, ref.name)):
        items = [{"key": ref.key, "path": ref.file} for ref in refs]
        field_name = "secret" if kind == "Secret" else "configMap"
        sources.append({field_name: {"name": name, "items": items, "optional": True}})
    return sources
