"""The objects of an AgentPool: `pool_children(pool, state, platform)`. Pure.

Its pods serve all Agents that chose the pool, and those that leave it, until their Services point
elsewhere. Keys and tokens are mounted before the pods get a document that needs them, and stay
mounted until the pods roll, so that removing an Agent restarts nothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from diptych_operator.desired.access import (
    ACCESS_KEY,
    TokenIssuer,
    pool_access_text,
    token_source,
)
from diptych_operator.desired.child import (
    child_of,
    owned_by_pods,
    pod_disruption_budget,
    service_spec,
    with_digest,
)
from diptych_operator.desired.children import Platform
from diptych_operator.desired.deployment import (
    GRACE_SECONDS,
    RESTRICTED_POD,
    PodDefaults,
    overridden,
    proxy_variables,
    rolling_deployment,
    serving_container,
    spread,
)
from diptych_operator.desired.expose import check_expose, ingress_sources
from diptych_operator.desired.metadata import with_metadata
from diptych_operator.desired.network_policy import (
    Rule,
    egress_rules,
    metrics_rules,
    pooled_ingress_rules,
    serving_rules,
)
from diptych_operator.desired.pool_documents import (
    CONFIG_MAPS,
    Document,
    Need,
    config_map_name,
    content_of,
    live_documents,
    newer,
)
from diptych_operator.desired.references import ObservedState
from diptych_operator.desired.resolved_manifest import FOLDER
from diptych_operator.desired.rollout import is_replacing_pods
from diptych_operator.desired.strategic_merge import strategic_merge
from diptych_operator.resources.agent import Agent, ExposeError, KeyKind, KeyRef
from diptych_operator.resources.agent_pool import FIRST_PORT, AgentPool
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    PORT,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    NamespacedName,
    Object,
)
from diptych_operator.resources.owner import AUDIENCES, ManifestError

MAX_CONFIG_MAP_BYTES: Final = 900 * 1024
"""Of the documents in one ConfigMap; the API takes 1 MiB."""

_RESOURCES: Final = {
    "requests": {"cpu": "50m", "memory": "384Mi"},
    "limits": {"memory": "1Gi"},
}
"""For a hundred Agents in a pod (docs/performance.md)."""
_START_SECONDS: Final = 300  # a pod is ready when it has tried all of its Agents
_SOURCES: Final[tuple[tuple[KeyKind, str], ...]] = (
    ("Secret", "secret"),
    ("ConfigMap", "configMap"),
)
"""Kinds of keys, and the fields of a volume's sources."""


@dataclass(frozen=True, slots=True)
class Member:
    """An Agent of a pool, with the pool's Redis, and what its document depends on."""

    agent: Agent
    observed: ObservedState


@dataclass(frozen=True, slots=True)
class PoolState:
    """The part of the cluster that concerns one pool.

    `members` are the Agents that chose it, `leaving` those that chose another place, and whose
    Services still point here. `served` names the Agents of which some pod reports. `is_settled`
    says that no pod serves a former document any more. `now` is a Unix time.
    """

    members: Sequence[Member] = ()
    leaving: Sequence[Member] = ()
    deployment: Object | None = None
    network_policy: Object | None = None
    config_maps: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    issuer: TokenIssuer | None = None
    served: frozenset[str] = frozenset()
    is_settled: bool = True
    now: int = 0


@dataclass(frozen=True, slots=True)
class PoolChildren:
    """The desired children, in the order in which they are applied, and their documents.

    `documents` are those to be served, by Agent. `numbers` are the Agents' ports less `FIRST_PORT`.
    `refused` says why the pool does not take an Agent.
    """

    to_apply: tuple[Object, ...]
    obsolete: tuple[tuple[Kind, Object, str], ...]
    documents: Mapping[str, Document]
    numbers: Mapping[str, int]
    refused: Mapping[str, str]


def pool_children(pool: AgentPool, state: PoolState, platform: Platform) -> PoolChildren:
    """Return all objects that a pool needs. Raises `ManifestError` for its `podTemplate`."""
    live = live_documents(pool, state.config_maps)
    numbers, refused = _numbers(pool, state, live)
    wanted, rejected = _wanted(state, live, numbers, platform)
    needs = frozenset(need for document in wanted.values() for need in document.needs)
    mounted = mounted_needs(state.deployment)
    template = pod_template(pool, needs if needs - mounted else mounted, platform.pods)
    ready = _mountable(wanted, live, state, mounted)
    documents, crowded = _fitting(ready, live, numbers)
    config_maps = tuple(_config_maps(pool, documents, numbers))
    names = {one["metadata"]["name"] for one in config_maps}
    keeps_egress = bool(rejected or state.leaving) or documents != wanted or not state.is_settled
    policy = _policy_spec(pool, state, documents, platform, keeps_former_egress=keeps_egress)
    to_apply = (
        child_of(pool, SERVICE_ACCOUNT, automountServiceAccountToken=False),
        *_access_config_map(pool, state, platform),
        owned_by_pods(child_of(pool, NETWORK_POLICY, spec=policy), state.pods),
        *config_maps,
        child_of(pool, SERVICE, spec=service_spec(pool)),
        *pod_disruption_budget(pool, pool.replicas),
        child_of(
            pool,
            DEPLOYMENT,
            spec=rolling_deployment(pool, pool.replicas, template, platform.pods.rollout),
        ),
    )
    obsolete = tuple(
        (CONFIG_MAP, one, "no Agent is in it any more")
        for one in state.config_maps
        if one["metadata"]["name"] not in {*names, access_name(pool)}
    )
    applied = (with_metadata(child, pool, platform.metadata) for child in to_apply)
    return PoolChildren(
        tuple(map(with_digest, applied)), obsolete, documents, numbers, refused | crowded
    )


def access_name(pool: AgentPool) -> str:
    """Name the ConfigMap with the access file of the pool's door."""
    return f"{pool.child_name}-access"


def _numbers(
    pool: AgentPool, state: PoolState, live: Mapping[str, Document]
) -> tuple[dict[str, int], dict[str, str]]:
    """Assign a number to each Agent; one that has a number keeps it until no pod knows the Agent.

    Beyond `maxAgents`, those that came last get none.
    """
    known: dict[str, int] = {**(pool.status.get("ports") or {})}
    known |= {name: document.port - FIRST_PORT for name, document in live.items()}
    staying = {one.agent.name for one in (*state.members, *state.leaving)} | state.served
    numbers = {name: number for name, number in known.items() if name in staying}
    names = sorted(one.agent.name for one in state.members)
    names.sort(key=lambda name: name not in numbers)
    message = (
        f"AgentPool {pool.name} is full ({pool.max_agents} Agents); raise its spec.maxAgents, or "
        "choose another pool."
    )
    refused = dict.fromkeys(names[pool.max_agents :], message)
    taken, free = set(numbers.values()), 0
    for name in names[: pool.max_agents]:
        if name not in numbers:
            while free in taken:
                free += 1
            numbers[name] = free
            taken.add(free)
    return numbers, refused


def _wanted(
    state: PoolState,
    live: Mapping[str, Document],
    numbers: Mapping[str, int],
    platform: Platform,
) -> tuple[dict[str, Document], set[str]]:
    """Return the newest documents, and the Agents that have the last good one instead: they are
    rejected.
    """
    rejected = set()
    found = {one.agent.name: live.get(one.agent.name) for one in state.leaving}
    for member in state.members:
        name = member.agent.name
        if name not in numbers:
            continue
        try:
            content = content_of(
                member.agent, member.observed, platform, FIRST_PORT + numbers[name]
            )
        except (ManifestError, ValueError):  # its own reconcile meets the same, and says so
            found[name] = live.get(name)
            rejected.add(name)
        else:
            found[name] = newer(content, live.get(name), state.now)
    documents = {name: document for name, document in sorted(found.items()) if document}
    return documents, rejected


def _mountable(
    wanted: Mapping[str, Document],
    live: Mapping[str, Document],
    state: PoolState,
    mounted: frozenset[Need],
) -> dict[str, Document]:
    """Return the documents; the live one where a pod has not mounted all that the newer needs."""
    is_rolling = is_replacing_pods(state.deployment, state.pods)
    found: dict[str, Document | None] = {}
    for name, document in wanted.items():
        former = live.get(name)
        new = document.needs - (former.needs if former else frozenset())
        is_mounted = not new or (new <= mounted and not is_rolling)
        found[name] = document if is_mounted else former
    return {name: document for name, document in found.items() if document}


def _fitting(
    documents: Mapping[str, Document],
    live: Mapping[str, Document],
    numbers: Mapping[str, int],
) -> tuple[dict[str, Document], dict[str, str]]:
    """Leave out documents for which their ConfigMap has no room; those that it has stay."""
    sizes = dict.fromkeys(range(CONFIG_MAPS), 0)
    fitting, crowded = {}, {}
    for name in sorted(documents, key=lambda name: (name not in live, numbers[name])):
        place, size = numbers[name] % CONFIG_MAPS, len(documents[name].text.encode())
        if sizes[place] + size > MAX_CONFIG_MAP_BYTES:
            crowded[name] = "The pool has no room for such a manifest; choose another pool."
        else:
            sizes[place] += size
            fitting[name] = documents[name]
    return fitting, crowded


def _config_maps(
    pool: AgentPool, documents: Mapping[str, Document], numbers: Mapping[str, int]
) -> Iterator[Object]:
    for place in range(CONFIG_MAPS):
        data = {
            f"{name}.json": document.text
            for name, document in sorted(documents.items())
            if numbers[name] % CONFIG_MAPS == place
        }
        if data:
            yield child_of(pool, CONFIG_MAP, config_map_name(pool, place), data=data)


def _access_config_map(pool: AgentPool, state: PoolState, platform: Platform) -> Iterator[Object]:
    if state.issuer:
        text = pool_access_text(pool, state.issuer, platform.access)
        yield child_of(pool, CONFIG_MAP, access_name(pool), data={ACCESS_KEY: text})


def _policy_spec(
    pool: AgentPool,
    state: PoolState,
    documents: Mapping[str, Document],
    platform: Platform,
    *,
    keeps_former_egress: bool,
) -> dict[str, Any]:
    """Return the NetworkPolicy's spec: ingress by port, egress the union of all Agents'.

    `keeps_former_egress` is for pods that serve former documents.
    """
    network = platform.network
    ingress = serving_rules(None, network)
    egress: list[Rule] = []
    for one in (*state.members, *state.leaving):
        if document := documents.get(one.agent.name):
            sources = _sources(one, platform)
            ingress += pooled_ingress_rules(one.agent, network, sources, document.port)
        with suppress(ValueError):  # a URL that is none: the Agent is rejected
            egress += egress_rules(one.agent, one.observed, network)
    if keeps_former_egress or is_replacing_pods(state.deployment, state.pods):
        egress += ((state.network_policy or {}).get("spec") or {}).get("egress") or []
    return {
        "podSelector": {"matchLabels": pool.selector_labels},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": _merged([*ingress, *metrics_rules(network)]),
        "egress": list({json.dumps(rule, sort_keys=True): rule for rule in egress}.values()),
    }


def _sources(member: Member, platform: Platform) -> Sequence[Mapping[str, Any]]:
    """Return the peers by which an Agent is exposed; none if it may not be."""
    try:
        check_expose(member.agent, member.observed, platform.expose)
    except ExposeError:
        return ()
    return ingress_sources(member.agent, platform.expose)


def _merged(rules: Iterable[Rule]) -> list[Rule]:
    """Merge rules of the same peers: one for each, with all of their ports."""
    found: dict[str, Rule] = {}
    for rule in rules:
        rest = {name: value for name, value in rule.items() if name != "ports"}
        merged = found.setdefault(json.dumps(rest, sort_keys=True), {**rest, "ports": []})
        merged["ports"] += [port for port in rule["ports"] if port not in merged["ports"]]
    return list(found.values())


def pod_template(pool: AgentPool, needs: frozenset[Need], defaults: PodDefaults) -> dict[str, Any]:
    """Return the pod template: the operator's, overridden by the platform's, then the pool's.

    Raises `ManifestError`.
    """
    template: dict[str, Any] = {
        "metadata": {"labels": pool.child_labels},
        "spec": _pod_spec(pool, needs, defaults),
    }
    template = strategic_merge(template, defaults.template, "the operator's pod template")
    own = pool.spec.get("podTemplate") or {}
    return overridden(template, pool, own, defaults, "spec.podTemplate")


def _pod_spec(pool: AgentPool, needs: frozenset[Need], defaults: PodDefaults) -> dict[str, Any]:
    volumes = dict(_volumes(pool, needs))
    return {
        "serviceAccountName": pool.child_name,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        **RESTRICTED_POD,
        "containers": [_container(pool, needs, tuple(volumes), defaults)],
        "volumes": [
            *({"name": _volume_name(path), **source} for path, source in volumes.items()),
            {"name": "tmp", "emptyDir": {}},
        ],
        **spread(pool),
    }


def _container(
    pool: AgentPool, needs: frozenset[Need], paths: Iterable[str], defaults: PodDefaults
) -> dict[str, Any]:
    peers = {need[0] for need in needs if not isinstance(need, KeyRef)}
    variables = {
        "DIPTYCH_POOL_NAME": pool.name,
        "DIPTYCH_POOL_NAMESPACE": pool.namespace,
        **proxy_variables(defaults.proxy, (f".{one}" for one in sorted({pool.namespace, *peers}))),
    }
    mounts = [
        {"name": _volume_name(path), "mountPath": f"{FOLDER}/{path}", "readOnly": True}
        for path in paths
    ]
    arguments = ["pool", "--host", "::", "--port", str(PORT)]
    container = serving_container(arguments, variables, mounts, defaults, _START_SECONDS)
    return {**container, "resources": pool.spec.get("resources") or _RESOURCES}


def _volumes(pool: AgentPool, needs: frozenset[Need]) -> Iterator[tuple[str, Object]]:
    """Yield the volumes, by the folder below `FOLDER` at which each is mounted."""
    items = [{"key": ACCESS_KEY, "path": ACCESS_KEY}]
    yield "access", {"configMap": {"name": access_name(pool), "items": items}}
    keys = sorted(need for need in needs if isinstance(need, KeyRef))
    for kind, field in _SOURCES:
        by_name = groupby((ref for ref in keys if ref.kind == kind), lambda ref: ref.name)
        sources = [
            {
                field: {
                    "name": name,
                    "items": [{"key": ref.key, "path": f"{name}/{ref.key}"} for ref in refs],
                    "optional": True,
                }
            }
            for name, refs in by_name
        ]
        if sources:
            yield f"{kind.lower()}s", {"projected": {"sources": sources}}
    if tokens := sorted(need for need in needs if not isinstance(need, KeyRef)):
        sources = [token_source(Agent.audience_of(one), _token_path(one)) for one in tokens]
        yield "tokens", {"projected": {"sources": sources}}
    for place in range(CONFIG_MAPS):
        config_map = {"name": config_map_name(pool, place), "optional": True}
        yield f"pool/{place}", {"configMap": config_map}


def _token_path(token: NamespacedName) -> str:
    kind, _, name = token[1].rpartition("/")
    return ".".join(filter(None, (kind, token[0], name)))


def _volume_name(path: str) -> str:
    return path.replace("/", "-")


def mounted_needs(deployment: Object | None) -> frozenset[Need]:
    """Return the keys and tokens that the newest pods of a pool mount."""
    template = ((deployment or {}).get("spec") or {}).get("template") or {}
    volumes = (template.get("spec") or {}).get("volumes") or ()
    sources = [
        one for volume in volumes for one in (volume.get("projected") or {}).get("sources") or ()
    ]
    return frozenset(need for source in sources for need in _needs_of(source))


def _needs_of(source: Mapping[str, Any]) -> Iterator[Need]:
    if token := source.get("serviceAccountToken"):
        namespace, _, name = token["audience"].removeprefix(AUDIENCES).partition("/")
        yield namespace, name
    for key_kind, field in _SOURCES:
        given = source.get(field) or {}
        yield from (KeyRef(key_kind, given["name"], item["key"]) for item in given.get("items", ()))
