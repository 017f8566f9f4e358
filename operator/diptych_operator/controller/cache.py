"""The cache of observed objects, from which every decision is made (an informer's cache).

Watches and lists put objects in, and so does the answer to every write. An older version never
replaces a newer one, and a list from before a deletion does not bring the object back.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from diptych_operator.desired.agent_model import (
    fallback_names,
    model_config_map_name,
    model_urls,
    with_model,
)
from diptych_operator.desired.drift import ADDED, additions
from diptych_operator.desired.endpoints import former_urls
from diptych_operator.desired.expose import exposed_at_host
from diptych_operator.desired.model_api import proxy_config_map_name
from diptych_operator.desired.references import (
    ForeignRef,
    Hosting,
    ObservedState,
    Permission,
    Place,
    Unresolved,
    address,
    may_delegate,
    permission,
    references,
)
from diptych_operator.desired.tool_servers import with_tool_servers
from diptych_operator.resources.agent import Agent, bad_conditions, ready_status
from diptych_operator.resources.agent_pool import FIRST_PORT, AgentPool, pool_of_service
from diptych_operator.resources.kinds import (
    AGENT,
    CHILD_KINDS,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    MCP_SERVER,
    MODEL_API,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    ROUTE_KINDS,
    SERVICE,
    Kind,
    NamespacedName,
    Object,
    ObjectKey,
    namespaced_name_of,
)
from diptych_operator.resources.labels import selector_labels
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import Owner, is_owned_by
from diptych_operator.resources.owners import OWNERS, owner_by_labels, owners_by_name
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import MissingDependency
from diptych_operator.status.mcp_server import Handshake


class ReferrerIndex:
    """Maps objects to the owners that refer to them."""

    def __init__(self) -> None:
        self._referrers: dict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        self._references: dict[ObjectKey, frozenset[ObjectKey]] = {}

    def of(self, reference: ObjectKey) -> set[ObjectKey]:
        return self._referrers.get(reference, set())

    def references_of(self, owner: ObjectKey) -> frozenset[ObjectKey]:
        """Return the known references of an owner."""
        return self._references.get(owner, frozenset())

    def set_references(
        self, owner: ObjectKey, wanted: frozenset[ObjectKey]
    ) -> frozenset[ObjectKey]:
        """Replace the references of an owner; return the former ones."""
        before = self._references.pop(owner, frozenset())
        for reference in before - wanted:
            self._referrers[reference].discard(owner)
            if not self._referrers[reference]:
                del self._referrers[reference]
        for reference in wanted - before:
            self._referrers[reference].add(owner)
        if wanted:
            self._references[owner] = wanted
        return before


_Owner = TypeVar("_Owner", bound=Owner)
_LABELLED = (POD, JOB, CRON_JOB, CONFIG_MAP)
_CHILDREN = (*CHILD_KINDS, *ROUTE_KINDS)
_POD_STATUS_FIELDS = {
    "phase",
    "podIP",
    "conditions",
    "message",
    "containerStatuses",
    "initContainerStatuses",
}


class ObjectCache:
    """All observed objects, and which owners depend on which of them.

    `watched_namespaces` are the namespaces that the operator watches; None means all. `domain` is
    the cluster's DNS domain, `shared_urls` those that the platform has every Agent ask.
    """

    def __init__(
        self,
        watched_namespaces: frozenset[str] | None = None,
        domain: str = "cluster.local",
        shared_urls: tuple[str, ...] = (),
    ) -> None:
        self.watched_namespaces = watched_namespaces
        self.domain = domain
        self._shared_urls = shared_urls
        self.missing_dependencies: dict[ObjectKey, tuple[MissingDependency, ...] | None] = {}
        """What each polled owner's pods report as missing; None if no pod has answered."""
        self.answers: dict[ObjectKey, Mapping[str, Object]] = {}
        """The answers of pods to `/ready`, by pod; of owners that are no Agents."""
        self.asked: dict[ObjectKey, str] = {}
        """The pod template, by its digest, of which all pods were when they were asked last."""
        self.scheduled_ends: dict[ObjectKey, Mapping[str, Object]] = {}
        """How the last run of each schedule ended, by its CronJob, as Agents' pods have told."""
        self.start_problems: dict[ObjectKey, Problem] = {}
        """What keeps a pod from starting, where only Events tell."""
        self.handshakes: dict[ObjectKey, Handshake] = {}
        """The answer of each MCPServer that was asked."""
        self.foreign_servers: dict[ForeignRef, Object | Unresolved] = {}
        """Tool servers of other API groups, or why they cannot be read."""
        self._objects: dict[Kind, dict[NamespacedName, Object]] = defaultdict(dict)
        self._labelled: dict[tuple[Kind, ObjectKey], dict[str, Object]] = defaultdict(dict)
        """Pods, Jobs and ConfigMaps by the owner that their labels name."""
        self._deleted: dict[Kind, dict[NamespacedName, int]] = defaultdict(dict)
        """The version of each deletion that no list has confirmed yet."""
        self._referrers = ReferrerIndex()

    def put(self, kind: Kind, content: Object) -> set[ObjectKey]:
        """Store an object; return the owners to reconcile because it has changed."""
        name = namespaced_name_of(content)
        former = self._objects[kind].get(name)
        if former is not None and _version(former) >= _version(content) >= 0:
            return set()
        if 0 <= _version(content) <= self._deleted[kind].get(name, -1):
            return set()
        self._objects[kind][name] = _trimmed(kind, content)
        if kind in _LABELLED and (owner := owner_by_labels(content)):
            self._labelled[kind, owner][name[1]] = self._objects[kind][name]
        affected = self._affected(kind, content)
        if kind in OWNERS and (former is None or former.get("spec") != content.get("spec")):
            affected |= self._index(OWNERS[kind].read(content))
        return affected

    def remove(self, kind: Kind, content: Object) -> set[ObjectKey]:
        """Remove a deleted object, unless another one has its name by now.

        Returns the owners to reconcile.
        """
        name = namespaced_name_of(content)
        self._deleted[kind][name] = max(self._deleted[kind].get(name, -1), _version(content))
        former = self._objects[kind].get(name)
        if former is None or former["metadata"].get("uid") != content["metadata"].get("uid"):
            return set()
        del self._objects[kind][name]
        if kind in _LABELLED and (owner := owner_by_labels(content)):
            self._labelled[kind, owner].pop(name[1], None)
        return self._affected(kind, content)

    def remove_absent(
        self, kind: Kind, namespace: str, listed: Iterable[Object], version: int
    ) -> set[ObjectKey]:
        """Remove objects that a list of this version lacks: they were deleted before it.

        Returns the owners to reconcile.
        """
        names = set(map(namespaced_name_of, listed))
        deleted = self._deleted[kind]
        self._deleted[kind] = {name: at for name, at in deleted.items() if at > version}
        absent = [
            content
            for name, content in self._objects[kind].items()
            if name not in names and namespace in {"", name[0]} and _version(content) <= version
        ]
        return {owner for content in absent for owner in self.remove(kind, content)}

    def callers(self, agent: Agent) -> dict[NamespacedName, list[NamespacedName]]:
        """Return the Agents that delegate to an Agent and are allowed to, each with its `pools`."""
        referrers = _names(self._referrers.of(agent.key), AGENT)
        callers = filter(None, map(self.agent, referrers))
        return {
            caller.namespaced_name: self.pools(caller)
            for caller in callers
            if self._may_call(caller, agent)
        }

    def references(self, key: ObjectKey) -> set[ObjectKey]:
        """Return the owners that an owner refers to."""
        return {one for one in self._referrers.references_of(key) if self._is_there(one)}

    def referrers(self, key: ObjectKey) -> set[ObjectKey]:
        """Return the owners that refer to an object."""
        return {one for one in self._referrers.of(key) if self._is_there(one)}

    def pool(self, name: NamespacedName) -> AgentPool | None:
        return self.read(AgentPool, name)

    def pools(self, agent: Agent) -> list[NamespacedName]:
        """Name the accounts of the pools in which an Agent runs: the one that it chose, and the one
        at which its Service still points.
        """
        return [(agent.namespace, name + AgentPool.suffixes[0]) for name in self._pool_names(agent)]

    def pod_selectors(self, agent: Agent) -> list[dict[str, str]]:
        """Return the labels of the pods in which an Agent runs: its own, and those of its pools."""
        own = [agent.selector_labels] if self.has_own_pods(agent) else []
        return own + [selector_labels(n, AgentPool.app) for n in self._pool_names(agent)]

    def has_own_pods(self, owner: Owner) -> bool:
        """Whether an owner has pods of its own, or shall have some."""
        in_pool = isinstance(owner, Agent) and owner.pool is not None
        return not in_pool or self.deployment(owner) is not None

    def agents_of(self, pool: AgentPool) -> Iterator[Agent]:
        """Return the Agents that chose a pool, and those whose Services still point at it."""
        chosen = set(_names(self._referrers.of(pool.key), AGENT))
        known = {(pool.namespace, name) for name in pool.status.get("ports") or ()}
        for name in sorted(chosen | known):
            agent = self.agent(name)
            if agent and not agent.is_terminating and pool.name in self._pool_names(agent):
                yield agent

    def _pool_names(self, agent: Agent) -> list[str]:
        pointed_at = pool_of_service(self.find(SERVICE, agent.namespaced_name))
        return sorted({name for name in (agent.pool, pointed_at) if name})

    def _places(self, name: NamespacedName) -> list[Place]:
        """Return where the pods of an Agent listen, as far as its ports are known."""
        agent = self.agent(name)
        if agent is None:
            return [Place(name[0], selector_labels(name[1]))]
        has_own = self.has_own_pods(agent)
        places = [Place(agent.namespace, agent.selector_labels)] if has_own else []
        for pool in self._pool_names(agent):
            if port := self._pooled_port(agent, pool):
                labels = selector_labels(pool, AgentPool.app)
                places.append(Place(agent.namespace, labels, port))
        return places

    def _pooled_port(self, agent: Agent, name: str) -> int | None:
        pool = self.pool((agent.namespace, name))
        number = (pool.status.get("ports") or {}).get(agent.name) if pool else None
        return None if number is None else FIRST_PORT + number

    def _hosting(self, agent: Agent) -> Hosting | None:
        pool = self.pool((agent.namespace, agent.pool)) if agent.pool else None
        return Hosting(pool, self._pooled_port(agent, pool.name)) if pool else None

    def find(self, kind: Kind, name: NamespacedName) -> Object | None:
        return self._objects[kind].get(name)

    def all(self, kind: Kind) -> Iterator[tuple[NamespacedName, Object]]:
        """Return all objects of a kind, with their names."""
        yield from self._objects[kind].items()

    def owner(self, key: ObjectKey) -> Owner | None:
        content = self._objects[key.kind].get(key.namespaced_name)
        return OWNERS[key.kind].read(content) if content else None

    def read(self, owner_type: type[_Owner], name: NamespacedName) -> _Owner | None:
        content = self._objects[owner_type.kind].get(name)
        return owner_type.read(content) if content else None

    def agent(self, name: NamespacedName) -> Agent | None:
        return self.read(Agent, name)

    def is_watched(self, namespace: str) -> bool:
        return self.watched_namespaces is None or namespace in self.watched_namespaces

    def agent_names(self) -> Iterator[NamespacedName]:
        """Name all Agents."""
        yield from self._objects[AGENT]

    def owner_keys(self) -> Iterator[ObjectKey]:
        """Name all objects that have children."""
        for kind in OWNERS:
            for name in self._objects[kind]:
                yield ObjectKey(kind, *name)

    def pods(self, owner: ObjectKey) -> tuple[Object, ...]:
        return tuple(self._labelled.get((POD, owner), {}).values())

    def config_maps(self, owner: Owner) -> tuple[Object, ...]:
        """Return the live ConfigMaps that an owner has."""
        found = self._labelled.get((CONFIG_MAP, owner.key), {}).values()
        return tuple(one for one in found if is_owned_by(one, owner))

    def peers(self, agent: Agent) -> list[NamespacedName]:
        """Name the Agents that an Agent refers to."""
        return _names(self._referrers.references_of(agent.key), AGENT)

    def children(self, owner: Owner) -> Iterator[tuple[Kind, Object]]:
        """Return the live children of `CHILD_KINDS` and routes that an owner has."""
        for kind in _CHILDREN:
            for name in owner.child_names:
                if live := self.child(owner, kind, name):
                    yield kind, live

    def child(self, owner: Owner, kind: Kind, name: str = "") -> Object | None:
        """Return a live child that an owner has, by default with the name of most of them."""
        live = self._objects[kind].get((owner.namespace, name or owner.child_name))
        return live if live and is_owned_by(live, owner) else None

    def cron_jobs(self, agent: Agent) -> tuple[Object, ...]:
        """Return the live CronJobs that an Agent has."""
        found = self._labelled.get((CRON_JOB, agent.key), {}).values()
        return tuple(one for one in found if is_owned_by(one, agent))

    def deployment(self, owner: Owner) -> Object | None:
        return self.child(owner, DEPLOYMENT)

    def purge_jobs(self, name: NamespacedName) -> tuple[Object, ...]:
        """Return the Jobs that purge, or shall purge, the sessions of Agents of a name."""
        return tuple(self._labelled.get((JOB, ObjectKey(AGENT, *name)), {}).values())

    def observe_and_track(self, agent: Agent) -> ObservedState:
        """Return what a decision about an Agent depends on.

        From now on a change of any of it affects the Agent.
        """
        wanted = references(agent, self.domain, self._shared_urls)
        apis = self._model_apis(agent)
        others = ObservedState(
            model_apis=apis,
            mcp_servers=self._mcp_servers(wanted),
            foreign_servers=self.foreign_servers,
            namespace_labels=self._namespace_labels(agent.namespace),
            watched_namespaces=self.watched_namespaces,
        )
        resolved = with_model(with_tool_servers(agent, others), others)
        wanted |= {ObjectKey(MODEL_API, *name) for name in fallback_names(agent, apis)}
        wanted |= references(resolved, self.domain, self._shared_urls)
        live = self.find(CONFIG_MAP, (agent.namespace, model_config_map_name(resolved)))
        former = former_urls(live, model_urls(resolved))
        wanted |= self._services_of(former, agent.namespace)
        self._set_references(agent.key, wanted)
        agents = {name: self.agent(name) for name in _names(wanted, AGENT)}
        services = {name: self.find(SERVICE, name) for name in _names(wanted, SERVICE)}
        return replace(
            others,
            services={name: found for name, found in services.items() if found},
            agents={name: found for name, found in agents.items() if found},
            former_urls=former,
            deployment=self.deployment(agent),
            network_policy=self.child(agent, NETWORK_POLICY),
            config_maps=self.config_maps(agent),
            cron_jobs=self.cron_jobs(agent),
            callers=self.callers(agent),
            pods=self.pods(agent.key),
            exposed_at_host=exposed_at_host(agent, self._objects[AGENT].values()),
            service=self.find(SERVICE, agent.namespaced_name),
            hosting=self._hosting(agent),
            places={name: self._places(name) for name in (agent.namespaced_name, *agents)},
        )

    def users(self, server: McpServer) -> tuple[Agent, ...]:
        """Return the Agents that refer to an MCPServer and may use it.

        From now on a change of their namespaces' labels affects the server.
        """
        found = _names(self._referrers.of(server.key), AGENT)
        agents = [agent for name in sorted(found) if (agent := self.agent(name))]
        others = {agent.namespace for agent in agents} - {server.namespace}
        self._set_references(
            server.key, frozenset(ObjectKey(NAMESPACE, "", name) for name in others)
        )
        return tuple(agent for agent in agents if self._may_use(agent, server))

    def _may_use(self, agent: Agent, owner: Owner) -> bool:
        observed = ObservedState(
            namespace_labels=self._namespace_labels(agent.namespace),
            watched_namespaces=self.watched_namespaces,
        )
        return permission(owner, agent.namespace, observed) is Permission.ALLOWED

    def _mcp_servers(self, wanted: Iterable[ObjectKey]) -> dict[NamespacedName, McpServer]:
        names = _names(wanted, MCP_SERVER)
        return {name: server for name in names if (server := self.read(McpServer, name))}

    def observe_model_api(self, api: ModelApi) -> ObservedState:
        """Return what a decision about a ModelAPI depends on; from now on its changes affect it."""
        live = self.find(CONFIG_MAP, (api.namespace, proxy_config_map_name(api)))
        former = former_urls(live, api.urls)
        wanted = references(api, self.domain, self._shared_urls)
        wanted |= self._services_of(former, api.namespace)
        others = {namespace for namespace, _ in self._model_referrers(api)} - {api.namespace}
        wanted |= {ObjectKey(NAMESPACE, "", name) for name in others}
        self._set_references(api.key, wanted)
        services = {name: self.find(SERVICE, name) for name in _names(wanted, SERVICE)}
        return ObservedState(
            services={name: found for name, found in services.items() if found},
            watched_namespaces=self.watched_namespaces,
            former_urls=former,
            config_maps=self.config_maps(api),
        )

    def model_users(self, api: ModelApi) -> tuple[Agent, ...]:
        """Return the Agents that refer to a ModelAPI, also as a fallback of another one's."""
        agents = filter(None, map(self.agent, sorted(self._model_referrers(api))))
        return tuple(agent for agent in agents if self._uses(agent, api))

    def _model_referrers(self, api: ModelApi) -> set[NamespacedName]:
        """Name the Agents that refer to a ModelAPI, or to one that falls back to it."""
        referrers = self._referrers.of(api.key)
        names = set(_names(referrers, AGENT))
        for name in _names(referrers, MODEL_API):
            names.update(_names(self._referrers.of(ObjectKey(MODEL_API, *name)), AGENT))
        return names

    def _uses(self, agent: Agent, api: ModelApi) -> bool:
        names = {*agent.model_apis, *fallback_names(agent, self._model_apis(agent))}
        return api.namespaced_name in names and self._may_use(agent, api)

    def _model_apis(self, agent: Agent) -> dict[NamespacedName, ModelApi]:
        """Return the ModelAPIs that an Agent refers to, and those that these fall back to."""
        found = self._existing_model_apis(agent.model_apis)
        return found | self._existing_model_apis(fallback_names(agent, found))

    def _existing_model_apis(
        self, names: Iterable[NamespacedName]
    ) -> dict[NamespacedName, ModelApi]:
        return {name: api for name in names if (api := self.read(ModelApi, name))}

    def _services_of(self, urls: Iterable[str], namespace: str) -> set[ObjectKey]:
        """Return the Services that the hosts of URLs may name."""
        names = (address(url, namespace, self.domain).service_name for url in urls)
        return {ObjectKey(SERVICE, *name) for name in names if name}

    def forget(self, key: ObjectKey) -> set[ObjectKey]:
        """Forget what a deleted owner depended on; return the owners it referred to."""
        referred = self._set_references(key, frozenset())
        self.missing_dependencies.pop(key, None)
        self.answers.pop(key, None)
        self.start_problems.pop(key, None)
        self.scheduled_ends.pop(key, None)
        self.asked.pop(key, None)
        self.handshakes.pop(key, None)
        for kind in _LABELLED:
            if not self._labelled.get((kind, key)):
                self._labelled.pop((kind, key), None)
        return referred

    def count_by_readiness(self) -> dict[str, int]:
        """Count the Agents by the status of their Ready condition."""
        counts: dict[str, int] = defaultdict(int)
        for content in self._objects[AGENT].values():
            counts[ready_status(content)] += 1
        return counts

    def count_bad_conditions(self) -> Counter[tuple[str, str]]:
        """Count the Agents by each condition, type and reason, that tells of something wrong."""
        agents = self._objects[AGENT].values()
        return Counter(found for content in agents for found in bad_conditions(content))

    def _may_call(self, caller: Agent, agent: Agent) -> bool:
        observed = ObservedState(
            agents={agent.namespaced_name: agent},
            namespace_labels=self._namespace_labels(caller.namespace),
            watched_namespaces=self.watched_namespaces,
        )
        peers = [peer for peer in caller.peers if peer.name == agent.namespaced_name]
        return any(may_delegate(caller, peer, observed) for peer in peers)

    def _namespace_labels(self, name: str) -> dict[str, dict[str, str]]:
        namespace = self.find(NAMESPACE, ("", name))
        return {name: namespace["metadata"].get("labels", {})} if namespace else {}

    def _index(self, owner: Owner) -> set[ObjectKey]:
        """Record an owner's references before it is reconciled, so that `callers` is complete.

        Returns the owners whose referrers may have changed. Without it a starting operator would
        write access files without callers.
        """
        try:
            wanted = references(owner, self.domain, self._shared_urls)
        except (AttributeError, LookupError, TypeError, ValueError):
            return set()  # its reconcile meets the same, and says so
        return self._set_references(owner.key, wanted)

    def _set_references(self, owner: ObjectKey, wanted: frozenset[ObjectKey]) -> set[ObjectKey]:
        """Record an owner's references; return the owners added to or removed from them."""
        before = self._referrers.set_references(owner, wanted)
        return {one for one in before ^ wanted if self._is_there(one)}

    def _is_there(self, key: ObjectKey) -> bool:
        """Whether an owner exists."""
        return key.kind in OWNERS and key.namespaced_name in self._objects[key.kind]

    def _affected(self, kind: Kind, content: Object) -> set[ObjectKey]:
        """Return the owners to reconcile when an object has changed."""
        name = namespaced_name_of(content)
        affected = set(self._referrers.of(ObjectKey(kind, *name)))
        if kind in {POD, CONFIG_MAP, CRON_JOB} and (owner := owner_by_labels(content)):
            affected.add(owner)
        elif kind in _CHILDREN:
            affected.update(owners_by_name(name))
        owners = set(filter(self._is_there, affected))
        if kind in OWNERS:  # it may be gone
            owners.add(ObjectKey(kind, *name))
        elif kind is JOB and (owner := owner_by_labels(content)):  # its Agent may be gone
            owners.add(owner)
        return owners


def _names(keys: Iterable[ObjectKey], kind: Kind) -> list[NamespacedName]:
    return [key.namespaced_name for key in keys if key.kind is kind]


def _version(content: Object) -> int:
    version = content["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else -1


def _trimmed(kind: Kind, content: Object) -> Object:
    """Drop fields that no decision needs, mainly `managedFields`, to save memory."""
    metadata: dict[str, Any] = dict(content["metadata"])
    if kind is DEPLOYMENT and (added := additions(metadata.get("managedFields", ()))):
        metadata[ADDED] = added
    metadata["managedFields"] = [
        {"manager": entry.get("manager"), "operation": entry.get("operation")}
        for entry in metadata.get("managedFields", ())
    ]
    trimmed = {**content, "metadata": metadata}
    if kind is POD:
        trimmed["spec"] = {"nodeName": (content.get("spec") or {}).get("nodeName")}
        status = content.get("status") or {}
        trimmed["status"] = {name: v for name, v in status.items() if name in _POD_STATUS_FIELDS}
    return trimmed
