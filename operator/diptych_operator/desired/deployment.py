"""The Deployment of an Agent, and its pod template. Pure.

The pods pass Pod Security `restricted`. The resolved manifest, the access file, a token for each
peer and every key that the manifest refers to are files of one projected volume; a missing Secret
or key does not keep a pod from starting.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from diptych_operator.desired.access import access_source, token_source, token_sources
from diptych_operator.desired.agent_model import (
    MODEL_FILE,
    model_source,
    model_urls,
    proxied_apis,
    token_file,
)
from diptych_operator.desired.locked_fields import LockedField, check_locked
from diptych_operator.desired.metadata import own_metadata
from diptych_operator.desired.references import address
from diptych_operator.desired.resolved_manifest import FILE, FOLDER
from diptych_operator.desired.strategic_merge import strategic_merge
from diptych_operator.resources.agent import Agent, KeyRef, PeerRef
from diptych_operator.resources.kinds import METRICS_PORT, PORT, NamespacedName, Object
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import ManifestError, Owner

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The proxy's URL, what else is asked directly, and the cluster's DNS domain."""

    url: str
    no_proxy: tuple[str, ...] = ()
    domain: str = "cluster.local"


def proxy_variables(proxy: ProxySettings | None, inside: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that send a pod's requests through the proxy; none without one.

    `inside` are names by which the pod asks for what is in the cluster.
    """
    if proxy is None:
        return {}
    direct = [*_LOOPBACK, ".svc", f".{proxy.domain}", *inside, *proxy.no_proxy]
    variables = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), proxy.url)
    return {**variables, "NO_PROXY": ",".join(dict.fromkeys(direct))}


def _inside(agent: Agent, proxy: ProxySettings) -> Iterator[str]:
    """Yield the names, without `.svc`, by which the pod asks for what is in the cluster.

    A host of two labels is taken for NAME.NAMESPACE if its URL says http: to look whether there is
    such a Service would roll the pods when it comes or goes.
    """
    names = [peer.name for peer in agent.peers]
    names += [ref.name for ref in agent.service_refs]
    yield from (f"{name}.{namespace}" for namespace, name in names)
    moving = set(model_urls(agent)) if agent.model_apis else set()  # must roll no pods
    for url in (*agent.urls, *agent.variable_urls):
        if url in moving:
            continue
        with suppress(ValueError):  # the manifest is rejected for it: `controller.obstacles`
            found = address(url, agent.namespace, proxy.domain)
            if found.service_name and (found.is_certain or url.startswith("http://")):
                yield found.host


CONTAINER = "agent"
VOLUME = "diptych"

RESTRICTED_POD: Final[Mapping[str, Any]] = {
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
}
"""What the spec of every pod has that the operator makes."""
RESTRICTED_CONTAINER: Final[Mapping[str, Any]] = {
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    },
}
"""What every container has that the operator makes."""

PRE_STOP_SECONDS = 5  # until every node's proxy stops sending requests to a terminating pod
MIN_READY_SECONDS = 2  # until every node's proxy sends requests to a ready pod
RUN_SECONDS = 60  # for a terminating pod's runs to end, before it hands them over
PRE_STOP: Final[Mapping[str, Any]] = {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}}
GRACE_SECONDS = PRE_STOP_SECONDS + RUN_SECONDS + 20  # 20 s for the hand-over
_IDLE_MIB = 112  # of an agent, idle or with a few runs (docs/performance.md, "What a pod needs")
_STDIO_MIB = 64  # of a small stdio server in Python, beside its agent


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Rollout settings.

    `max_surge` and `max_unavailable` are a Deployment's. `at_once` limits concurrent rollouts of
    what Agents share, `edits_at_once` those of edited Agents of a namespace; 0 means no limit.
    """

    max_surge: int | str = 1
    max_unavailable: int | str = 0
    at_once: int = 0
    edits_at_once: int = 0

    @property
    def is_limited(self) -> bool:
        return bool(self.at_once or self.edits_at_once)


@dataclass(frozen=True, slots=True)
class PodDefaults:
    """The operator's settings for all pods.

    `template` is merged below what the Agent says; of the fields in `locked` it may say nothing
    else.
    """

    image: str
    pull_policy: str = "IfNotPresent"
    template: Mapping[str, Any] = field(default_factory=dict)
    locked: tuple[LockedField, ...] = ()
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    proxy: ProxySettings | None = None


def deployment_spec(
    agent: Agent, config_map: str, defaults: PodDefaults, peers: Sequence[PeerRef]
) -> dict[str, Any]:
    """Return the Deployment's spec.

    Raises `ManifestError` for a pod template override that does not fit or is locked.

    `peers` are the Agents that this one may delegate to: its pods get a token for each.
    """
    template = pod_template(agent, config_map, defaults, peers)
    return rolling_deployment(agent, agent.replicas, template, defaults.rollout)


def rolling_deployment(
    owner: Owner, replicas: int, template: Object, rollout: RolloutSettings
) -> dict[str, Any]:
    """Return the spec of a Deployment that replaces its pods one after another."""
    return {
        "replicas": replicas,
        "minReadySeconds": MIN_READY_SECONDS,
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": 600,
        "selector": {"matchLabels": owner.selector_labels},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": rollout.max_surge,
                "maxUnavailable": rollout.max_unavailable,
            },
        },
        "template": template,
    }


def pod_template(
    agent: Agent, config_map: str, defaults: PodDefaults, peers: Sequence[PeerRef] = ()
) -> dict[str, Any]:
    """Return the pod template: the operator's, overridden by the platform's, then the Agent's.

    Raises `ManifestError`.
    """
    pod = _pod_spec(agent, _sources(agent, config_map, peers), defaults)
    template: dict[str, Any] = {"metadata": {"labels": agent.child_labels}, "spec": pod}
    template = strategic_merge(template, defaults.template, _PLATFORMS)
    for said_in, merge in _TEMPLATE_OVERRIDES:
        before, template = template, merge(template, agent)
        check_locked(before, template, defaults.locked, said_in)
    _check_labels(template, agent.selector_labels, "spec.podTemplate")
    return template


_SHARED_FIELDS: Final = ("env", "volumeMounts", "resources")


def on_platform(template: Object, defaults: PodDefaults, *, is_our_image: bool = True) -> Object:
    """Lay the platform's pod template over one that is no Agent's, but for its containers.

    Our image takes variables, mounts and resources of the platform's `agent`, below its own.
    """
    pod = defaults.template.get("spec") or {}
    others = {name: value for name, value in pod.items() if name != "containers"}
    merged = strategic_merge(template, {**defaults.template, "spec": others}, _PLATFORMS)
    agents = [one for one in pod.get("containers") or () if one.get("name") == CONTAINER]
    if is_our_image and agents:
        shared = {name: agents[0][name] for name in _SHARED_FIELDS if name in agents[0]}
        [own] = template["spec"]["containers"]
        merged["spec"]["containers"] = [strategic_merge(shared, own, _PLATFORMS)]
    return merged


def overridden(
    template: Object, owner: Owner, override: Object, defaults: PodDefaults, said_in: str
) -> Object:
    """Lay an owner's own pod template over its pods'. Raises `ManifestError`."""
    merged = strategic_merge(template, override, said_in)
    check_locked(template, merged, defaults.locked, said_in)
    _check_labels(merged, owner.selector_labels, said_in)
    return merged


def _check_labels(template: Object, labels: Mapping[str, str], said_in: str) -> None:
    for label, value in labels.items():
        if template["metadata"]["labels"].get(label) != value:
            sentence = f"{said_in}.metadata.labels must not change {label}"
            raise ManifestError("PodTemplateInvalid", sentence)


def _with_metadata(template: Object, agent: Agent) -> Object:
    own = own_metadata(agent)
    metadata = {**template["metadata"]}
    metadata["labels"] = {**metadata["labels"], **own.labels, **agent.child_labels}
    if own.annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **own.annotations}
    return {**template, "metadata": metadata}


def _with_container(template: Object, agent: Agent) -> Object:
    """Lay `spec.container` over the agent's container."""
    given = agent.container
    pod = template["spec"]
    containers = []
    for container in pod["containers"]:
        if container["name"] == CONTAINER:
            replaced = {name: given[name] for name in _REPLACED_FIELDS if name in given}
            container = {**container, **replaced}  # noqa: PLW2901
            if variables := given.get("env"):
                by_name = {variable["name"]: variable for variable in container.get("env", ())}
                by_name |= {variable["name"]: variable for variable in variables}
                container["env"] = list(by_name.values())
            if given.get("envFrom"):
                container["envFrom"] = [*container.get("envFrom", ()), *given["envFrom"]]
        containers.append(container)
    return {**template, "spec": {**pod, "containers": containers}}


def _with_pod_template(template: Object, agent: Agent) -> Object:
    return strategic_merge(template, agent.spec.get("podTemplate") or {}, "spec.podTemplate")


_PLATFORMS = "the operator's pod template"
_REPLACED_FIELDS = ("image", "imagePullPolicy", "resources")
_TEMPLATE_OVERRIDES = (
    ("spec.metadata", _with_metadata),
    ("spec.container", _with_container),
    ("spec.podTemplate", _with_pod_template),
)
"""The fields of a manifest that change the pod template, and what lays each over it."""


def _pod_spec(agent: Agent, sources: list[Object], defaults: PodDefaults) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "serviceAccountName": agent.name,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **RESTRICTED_POD,
        "containers": [_container(agent, defaults)],
        "volumes": [
            {"name": VOLUME, "projected": {"sources": sources}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if agent.redis:  # whatever `replicas` is: scaling alone must not roll the pods
        pod |= spread(agent)
    return pod


def spread(owner: Owner) -> dict[str, Any]:
    """Return the field of a pod's spec that has an owner's pods on different nodes."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": owner.selector_labels},
    }
    return {"topologySpreadConstraints": [constraint]}


def _container(agent: Agent, defaults: PodDefaults) -> dict[str, Any]:
    mounts = [{"name": VOLUME, "mountPath": FOLDER, "readOnly": True}]
    environment = _environment(agent, defaults.proxy)
    container = serving_container(_serve_args(agent), environment, mounts, defaults)
    return {**container, "resources": _resources(agent)}


def serving_container(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    mounts: Sequence[Object],
    defaults: PodDefaults,
    start_seconds: int = 60,
) -> dict[str, Any]:
    """Return a container that serves at `PORT` by a command of `diptych`, but for its resources."""
    variables = {
        **variables,
        "SHUTDOWN_GRACE_SECONDS": str(RUN_SECONDS),
        "METRICS_PORT": str(METRICS_PORT),
    }
    return {
        "name": CONTAINER,
        "image": defaults.image,
        "imagePullPolicy": defaults.pull_policy,
        "command": ["diptych"],
        "args": list(arguments),
        "ports": [
            {"name": "http", "containerPort": PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "startupProbe": probe("/health", periodSeconds=1, failureThreshold=start_seconds),
        "livenessProbe": probe("/health", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "readinessProbe": probe("/ready", periodSeconds=3, timeoutSeconds=3, failureThreshold=2),
        "lifecycle": PRE_STOP,
        **RESTRICTED_CONTAINER,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def _resources(agent: Agent) -> dict[str, Any]:
    memory = _IDLE_MIB + _STDIO_MIB * sum("command" in tool for tool in agent.tools)
    requests = {"cpu": "10m", "memory": f"{memory}Mi"}
    return {"requests": requests, "limits": {"memory": "512Mi"}}


def _serve_args(agent: Agent) -> list[str]:
    """Serve beyond loopback; open to everybody only if the manifest says so."""
    address = ["--host", "::", "--port", str(PORT)]  # both families
    return ["serve", f"{FOLDER}/{FILE}", *address, *(["--open"] if agent.is_open else [])]


def _environment(agent: Agent, proxy: ProxySettings | None) -> dict[str, str]:
    return {
        "PUBLIC_URL": agent.url,
        **({"DIPTYCH_MODEL_FILE": f"{FOLDER}/{MODEL_FILE}"} if agent.model_apis else {}),
        **(proxy_variables(proxy, _inside(agent, proxy)) if proxy else {}),
    }


def probe(path: str, port: int = PORT, **timing: int) -> dict[str, Any]:
    """Return an HTTP probe."""
    return {"httpGet": {"path": path, "port": port, "scheme": "HTTP"}, **timing}


def _model_token(api: NamespacedName) -> Object:
    return token_source(ModelApi.audience_of(api), token_file(api))


def _sources(agent: Agent, config_map: str, peers: Sequence[PeerRef]) -> list[Object]:
    """Return the volume's files: resolved manifest, access file, tokens for peers, and keys."""
    sources: list[Object] = [
        {"configMap": {"name": config_map, "items": [{"key": FILE, "path": FILE}]}},
        *([] if agent.is_open else [access_source(agent)]),
        *token_sources(peers),
        *(map(_model_token, proxied_apis(agent))),
        *([model_source(agent)] if agent.model_apis else []),
    ]
    return [*sources, *key_sources(agent.key_refs)]


def key_sources(refs: Iterable[KeyRef]) -> Iterator[Object]:
    """Yield the sources of sorted keys; a missing one does not keep a pod from starting."""
    for (kind, name), keys in groupby(refs, lambda ref: (ref.kind, ref.name)):
        items = [{"key": ref.key, "path": ref.file} for ref in keys]
        field_name = "secret" if kind == "Secret" else "configMap"
        yield {field_name: {"name": name, "items": items, "optional": True}}
