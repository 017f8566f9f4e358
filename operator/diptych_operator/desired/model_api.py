"""The objects that a ModelAPI needs: those of its proxy and of a hosted model server. Pure.

The proxy's pods read their configuration from a ConfigMap that changes under them, so that another
endpoint, limit or user restarts none of them; only another Secret does.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from diptych_operator.desired.access import (
    AccessSettings,
    TokenIssuer,
    cluster_issuer,
    operator_grants,
)
from diptych_operator.desired.agent_model import FALLBACK_HAS_KEY, has_key, with_files
from diptych_operator.desired.child import (
    child_of,
    pod_disruption_budget,
    service_spec,
    with_digest,
)
from diptych_operator.desired.children import Platform
from diptych_operator.desired.deployment import (
    GRACE_SECONDS,
    RESTRICTED_POD,
    PodDefaults,
    key_sources,
    on_platform,
    probe,
    proxy_variables,
    rolling_deployment,
    serving_container,
    spread,
)
from diptych_operator.desired.drift import digest
from diptych_operator.desired.endpoints import noted
from diptych_operator.desired.metadata import with_metadata
from diptych_operator.desired.network_policy import (
    Rule,
    model_server_policy_spec,
    proxy_policy_spec,
)
from diptych_operator.desired.references import ObservedState
from diptych_operator.desired.resolved_manifest import FOLDER
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    PORT,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import ManifestError

PROXY: Final = "model-proxy"
"""The container of a proxy's pod."""
MODEL: Final = "model-server"
"""The container of a hosted server's pod."""

_CONFIG: Final = "proxy.json"
_EVERYBODY: Final = "*/*"  # all accounts of all namespaces
_PASSED: Final = ("models", "default", "timeouts", "prices", "budget", "redis", "proxy")
_RESOURCES: Final = {
    "requests": {"cpu": "20m", "memory": "96Mi"},
    "limits": {"memory": "256Mi"},
}
_MODELS: Final = "/models"
_NOBODY: Final = 65532
_MODEL_STARTS_SECONDS: Final = 3600  # for weights to be loaded
_ENGINES: Final[Mapping[str, tuple[str, str]]] = {
    "ollama": ("OLLAMA_MODELS", "/api/version"),
    "vllm": ("HF_HOME", "/health"),
    "llamacpp": ("LLAMA_CACHE", "/health"),
}
"""For each engine the variable with the folder of weights, and the path that says it works."""
_LISTENS: Final[Mapping[str, Mapping[str, str]]] = {
    "ollama": {"OLLAMA_HOST": "0.0.0.0:{port}"},
    "vllm": {},
    "llamacpp": {"LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_ARG_PORT": "{port}"},  # noqa: S104
}
"""The variables that make an engine listen beyond loopback, and at the port."""


def proxy_config_map_name(api: ModelApi) -> str:
    """Name the ConfigMap of a ModelAPI's proxy, after the keys that it needs.

    Other keys need new pods: older ones must not read of files that they do not mount.
    """
    return f"{api.child_name}-proxy-{digest({'keys': api.key_refs})[:6]}"


@dataclass(frozen=True, slots=True)
class Users:
    """The Agents that may use a ModelAPI: their namespaces, and NetworkPolicy peers."""

    namespaces: Collection[str] = ()
    pods: Sequence[Rule] = ()


def model_api_children(
    api: ModelApi, observed: ObservedState, users: Users, platform: Platform
) -> tuple[Object, ...]:
    """Return all objects that a ModelAPI needs; none if the Agents ask the endpoint themselves.

    Raises `ManifestError`, and `ValueError` for an invalid URL.
    """
    _check_fallbacks(api)
    children: list[Object] = []
    if api.hosted:
        children += _server(api, users, platform)
    if api.is_proxied:
        children += _proxy(api, observed, users, platform)
    return tuple(with_digest(with_metadata(one, api, platform.metadata)) for one in children)


def _check_fallbacks(api: ModelApi) -> None:
    for number, entry in enumerate(api.fallbacks):
        if api.is_proxied and has_key(entry):
            raise ManifestError("FallbackHasKey", f"spec.fallbacks[{number}]: {FALLBACK_HAS_KEY}")


def _proxy(
    api: ModelApi, observed: ObservedState, users: Users, platform: Platform
) -> Iterator[Object]:
    if observed.issuer:
        text = _configuration(api, users, observed.issuer, platform.access)
        note, name = noted(api.urls, observed.former_urls), proxy_config_map_name(api)
        yield child_of(api, CONFIG_MAP, name, note, data={_CONFIG: text})
    yield child_of(api, SERVICE_ACCOUNT, automountServiceAccountToken=False)
    policy = proxy_policy_spec(api, users.pods, observed, platform.network)
    yield child_of(api, NETWORK_POLICY, spec=policy)
    yield child_of(api, SERVICE, spec=service_spec(api))
    yield from pod_disruption_budget(api, api.replicas)
    yield child_of(api, DEPLOYMENT, spec=_proxy_deployment(api, platform))


def _configuration(api: ModelApi, users: Users, issuer: TokenIssuer, access: AccessSettings) -> str:
    """Write what the proxy reads: the ModelAPI with files in place of keys, and an access file."""
    spec = {name: api.spec[name] for name in _PASSED if name in api.spec} | dict(api.address)
    if ref := api.redis_service:
        namespace, name = ref.name
        spec["redis"] = {"serviceRef": {"name": name, "namespace": namespace, "port": ref.port}}
    content = {
        "name": api.name,
        "namespace": api.namespace,
        "spec": with_files(spec, f"{FOLDER}/"),
        "access": {
            "issuers": [cluster_issuer(issuer, api.audience)],
            "grants": [*operator_grants(access), _users_grant(api, users)],
            "agents": [],
        },
    }
    return json.dumps(content, ensure_ascii=False, indent=1)


def _users_grant(api: ModelApi, users: Users) -> Object:
    """Let in all accounts of the namespaces that use the ModelAPI, as it consents to namespaces.

    So the file, which the kubelet takes a minute to write, need not change with each Agent.
    """
    namespaces = sorted({api.namespace, *users.namespaces})
    names = [_EVERYBODY] if api.allows_all else map(_accounts_of, namespaces)
    return {"to": [{"kind": "serviceaccount", "name": name} for name in names], "may": ["ask"]}


def _accounts_of(namespace: str) -> str:
    return f"{namespace}/*"


def _proxy_deployment(api: ModelApi, platform: Platform) -> Object:
    pods = platform.pods
    variables = {
        "DIPTYCH_PROXY_CONFIG": FOLDER,
        "PORT": str(PORT),
        **proxy_variables(pods.proxy),
    }
    mounts = [{"name": "diptych", "mountPath": FOLDER, "readOnly": True}]
    container = {
        **serving_container(["model-proxy", "--host", "::"], variables, mounts, pods),
        "name": PROXY,
        "resources": api.spec["proxy"].get("resources") or _RESOURCES,
    }
    items = [{"key": _CONFIG, "path": _CONFIG}]
    configuration = {"configMap": {"name": proxy_config_map_name(api), "items": items}}
    sources = [configuration, *key_sources(api.key_refs)]
    pod = {
        "serviceAccountName": api.child_name,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **RESTRICTED_POD,
        "containers": [container],
        "volumes": [
            {"name": "diptych", "projected": {"sources": sources}},
            {"name": "tmp", "emptyDir": {}},
        ],
        **spread(api),
    }
    template = on_platform({"metadata": {"labels": api.child_labels}, "spec": pod}, pods)
    return rolling_deployment(api, api.replicas, template, pods.rollout)


def _server(api: ModelApi, users: Users, platform: Platform) -> Iterator[Object]:
    def server_child(kind: Kind, **content: object) -> Object:
        one = child_of(api, kind, api.server_name, None, **content)
        one["metadata"]["labels"] |= api.server_labels
        return one

    yield server_child(SERVICE_ACCOUNT, automountServiceAccountToken=False)
    policy = model_server_policy_spec(api, users.pods, platform.network)
    yield server_child(NETWORK_POLICY, spec=policy)
    port = {"name": "http", "protocol": "TCP", "appProtocol": "http"}
    ports = [{**port, "port": api.server_port, "targetPort": api.server_port}]
    service = {"type": "ClusterIP", "selector": api.server_labels, "ports": ports}
    yield server_child(SERVICE, spec=service)
    if storage := api.hosted.get("storage"):
        claim: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage["size"]}},
        }
        if name := storage.get("storageClassName"):
            claim["storageClassName"] = name
        yield server_child(PERSISTENT_VOLUME_CLAIM, spec=claim)
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": _MODEL_STARTS_SECONDS,
        "selector": {"matchLabels": api.server_labels},
        "strategy": {"type": "Recreate"},  # two may not fit the volume, or the accelerators
        "template": _server_template(api, platform.pods),
    }
    yield server_child(DEPLOYMENT, spec=spec)


def _server_template(api: ModelApi, defaults: PodDefaults) -> Object:
    hosted = api.hosted
    folder, path = _ENGINES[hosted["engine"]]
    variables = {folder: _MODELS, "HOME": _MODELS, "USER": "model"}
    for name, value in _LISTENS[hosted["engine"]].items():
        variables[name] = value.format(port=api.server_port)
    variables |= proxy_variables(defaults.proxy)
    arguments = list(hosted.get("args") or ())
    if hosted["engine"] == "vllm" and "port" in hosted:
        arguments += ["--port", str(api.server_port)]
    tries = _MODEL_STARTS_SECONDS // 10
    container = {
        "name": MODEL,
        "image": hosted["image"],
        "args": arguments,
        "ports": [{"name": "http", "containerPort": api.server_port, "protocol": "TCP"}],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": hosted.get("resources") or {},
        "startupProbe": probe(path, api.server_port, periodSeconds=10, failureThreshold=tries),
        "livenessProbe": probe(
            path, api.server_port, periodSeconds=10, timeoutSeconds=5, failureThreshold=6
        ),
        "readinessProbe": probe(path, api.server_port, periodSeconds=3, timeoutSeconds=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,  # images of others write to their root
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": _MODELS},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    claim = {"persistentVolumeClaim": {"claimName": api.server_name}}
    pod = {
        "serviceAccountName": api.server_name,
        **RESTRICTED_POD,
        "securityContext": {
            **RESTRICTED_POD["securityContext"],
            "runAsUser": _NOBODY,  # most images name no user, and run as root
            "runAsGroup": _NOBODY,
            "fsGroup": _NOBODY,
        },
        "containers": [container],
        "volumes": [
            {"name": "models", **(claim if "storage" in hosted else {"emptyDir": {}})},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    labels = {**api.child_labels, **api.server_labels}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return on_platform(template, defaults, is_our_image=False)
