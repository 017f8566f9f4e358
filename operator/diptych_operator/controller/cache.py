"""The cache of observed objects, from which every decision is made (an informer's cache).

Watches and lists put objects in, and so does the answer to every write. An older version never
replaces a newer one, and a list from before a deletion does not bring the object back.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from diptych_operator.desired.drift import ADDED, additions
from diptych_operator.desired.expose import exposed_at_host
from diptych_operator.desired.references import ObservedState, Reference, may_delegate, references
from diptych_operator.resources.agent import (
    Agent,
    agent_of,
    bad_conditions,
    is_owned_by,
    ready_status,
)
from diptych_operator.resources.kinds import (
    AGENT,
    CHILD_KINDS,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    NETWORK_POLICY,
    POD,
    ROUTE_KINDS,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    NamespacedName,
    Object,
    child_owner,
    namespaced_name_of,
    schedules_name,
)
from diptych_operator.resources.labels import agent_name_of
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import MissingDependency


class ReferrerIndex:
    """Maps objects to the Agents that refer to them."""

    def __init__(self) -> None:
        self._referrers: dict[Reference, set[NamespacedName]] = defaultdict(set)
        self._references: dict[NamespacedName, frozenset[Reference]] = {}

    def of(self, reference: Reference) -> set[NamespacedName]:
        return self._referrers.get(reference, set())

    def references_of(self, name: NamespacedName) -> frozenset[Reference]:
        """Return what an Agent refers to, as far as it is known."""
        return self._references.get(name, frozenset())

    def set_references(
        self, name: NamespacedName, wanted: frozenset[Reference]
    ) -> frozenset[Reference]:
        """Replace the references of an Agent; return the former ones."""
        before = self._references.pop(name, frozenset())
        for reference in before - wanted:
            self._referrers[reference].discard(name)
            if not self._referrers[reference]:
                del self._referrers[reference]
        for reference in wanted - before:
            self._referrers[reference].add(name)
        if wanted:
            self._references[name] = wanted
        return before


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
    """All observed objects, and which Agents depend on which of them.

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
        self.missing_dependencies: dict[NamespacedName, tuple[MissingDependency, ...] | None] = {}
        """What each polled Agent's pods report as missing; None if no pod has answered."""
        self.asked: dict[NamespacedName, str] = {}
        """The pod template, by its digest, of which all pods were when they were asked last."""
        self.start_problems: dict[NamespacedName, Problem] = {}
        """What keeps a pod from starting, where only Events tell."""
        self._objects: dict[Kind, dict[NamespacedName, Object]] = defaultdict(dict)
        self._labelled: dict[tuple[Kind, NamespacedName], dict[str, Object]] = defaultdict(dict)
        """Pods, Jobs and ConfigMaps by the Agent that their labels name."""
        self._deleted: dict[Kind, dict[NamespacedName, int]] = defaultdict(dict)
        """The version of each deletion that no list has confirmed yet."""
        self._referrers = ReferrerIndex()

    def put(self, kind: Kind, content: Object) -> set[NamespacedName]:
        """Store an object; return the Agents to reconcile because it has changed."""
        name = namespaced_name_of(content)
        former = self._objects[kind].get(name)
        if former is not None and _version(former) >= _version(content) >= 0:
            return set()
        if 0 <= _version(content) <= self._deleted[kind].get(name, -1):
            return set()
        self._objects[kind][name] = _trimmed(kind, content)
        if kind in _LABELLED and (agent_name := agent_name_of(content)):
            self._labelled[kind, agent_name][name[1]] = self._objects[kind][name]
        peers = self._index(agent_of(content)) if kind is AGENT else set()
        return self._affected_agents(kind, content) | peers

    def remove(self, kind: Kind, content: Object) -> set[NamespacedName]:
        """Remove a deleted object, unless another one has its name by now.

        Returns the Agents to reconcile.
        """
        name = namespaced_name_of(content)
        self._deleted[kind][name] = max(self._deleted[kind].get(name, -1), _version(content))
        former = self._objects[kind].get(name)
        if former is None or former["metadata"].get("uid") != content["metadata"].get("uid"):
            return set()
        del self._objects[kind][name]
        if kind in _LABELLED and (agent_name := agent_name_of(content)):
            self._labelled[kind, agent_name].pop(name[1], None)
        return self._affected_agents(kind, content)

    def remove_absent(
        self, kind: Kind, namespace: str, listed: Iterable[Object], version: int
    ) -> set[NamespacedName]:
        """Remove objects that a list of this version lacks: they were deleted before it.

        Returns the Agents to reconcile.
        """
        names = set(map(namespaced_name_of, listed))
        deleted = self._deleted[kind]
        self._deleted[kind] = {name: at for name, at in deleted.items() if at > version}
        absent = [
            content
            for name, content in self._objects[kind].items()
            if name not in names and namespace in {"", name[0]} and _version(content) <= version
        ]
        return {name for content in absent for name in self.remove(kind, content)}

    def callers(self, agent: Agent) -> tuple[NamespacedName, ...]:
        """Return the names of Agents that delegate to an Agent and are allowed to."""
        referrers = self._referrers.of((AGENT.name, *agent.namespaced_name))
        callers = filter(None, map(self.agent, referrers))
        return tuple(caller.namespaced_name for caller in callers if self._may_call(caller, agent))

    def find(self, kind: Kind, name: NamespacedName) -> Object | None:
        return self._objects[kind].get(name)

    def all(self, kind: Kind) -> Iterator[tuple[NamespacedName, Object]]:
        """Return all objects of a kind, with their names."""
        yield from self._objects[kind].items()

    def agent(self, name: NamespacedName) -> Agent | None:
        content = self._objects[AGENT].get(name)
        return agent_of(content) if content else None

    def agent_names(self) -> Iterator[NamespacedName]:
        """Name all Agents."""
        yield from self._objects[AGENT]

    def pods(self, name: NamespacedName) -> tuple[Object, ...]:
        return tuple(self._labelled.get((POD, name), {}).values())

    def config_maps(self, agent: Agent) -> tuple[Object, ...]:
        """Return the live ConfigMaps that an Agent owns."""
        found = self._labelled.get((CONFIG_MAP, agent.namespaced_name), {}).values()
        return tuple(one for one in found if is_owned_by(one, agent))

    def peers(self, name: NamespacedName) -> list[NamespacedName]:
        """Name the Agents that an Agent refers to."""
        return _names(self._referrers.references_of(name), AGENT)

    def children(self, agent: Agent) -> Iterator[tuple[Kind, Object]]:
        """Return the live children that an Agent owns."""
        for kind in _CHILDREN:
            live = self._objects[kind].get(agent.namespaced_name)
            if live and is_owned_by(live, agent):
                yield kind, live

    def schedules(self, agent: Agent) -> Iterator[tuple[Kind, Object]]:
        """Return the live objects that run an Agent's schedules, and that it owns."""
        name = agent.namespace, schedules_name(agent.name)
        found = [(kind, self.find(kind, name)) for kind in (SERVICE_ACCOUNT, NETWORK_POLICY)]
        cron_jobs = self._labelled.get((CRON_JOB, agent.namespaced_name), {})
        found += [(CRON_JOB, live) for live in cron_jobs.values()]
        for kind, live in found:
            if live and is_owned_by(live, agent):
                yield kind, live

    def deployment(self, agent: Agent) -> Object | None:
        return dict(self.children(agent)).get(DEPLOYMENT)

    def purge_jobs(self, name: NamespacedName) -> tuple[Object, ...]:
        """Return the Jobs that purge, or shall purge, the sessions of Agents of a name."""
        return tuple(self._labelled.get((JOB, name), {}).values())

    def observe_and_track(self, agent: Agent) -> ObservedState:
        """Return what a decision about an Agent depends on.

        From now on a change of any of it affects the Agent.
        """
        wanted = references(agent, self.domain, self._shared_urls)
        self._set_references(agent.namespaced_name, wanted)
        agents = {name: self.agent(name) for name in _names(wanted, AGENT)}
        services = {name: self.find(SERVICE, name) for name in _names(wanted, SERVICE)}
        children = dict(self.children(agent))
        return ObservedState(
            services={name: found for name, found in services.items() if found},
            agents={name: found for name, found in agents.items() if found},
            namespace_labels=self._namespace_labels(agent.namespace),
            watched_namespaces=self.watched_namespaces,
            deployment=children.get(DEPLOYMENT),
            network_policy=children.get(NETWORK_POLICY),
            config_maps=self.config_maps(agent),
            schedules=tuple(self.schedules(agent)),
            callers=self.callers(agent),
            pods=self.pods(agent.namespaced_name),
            exposed_at_host=exposed_at_host(agent, self._objects[AGENT].values()),
        )

    def forget(self, name: NamespacedName) -> set[NamespacedName]:
        """Forget what a deleted Agent depended on; return the Agents it referred to."""
        peers = self._set_references(name, frozenset())
        self.missing_dependencies.pop(name, None)
        self.start_problems.pop(name, None)
        self.asked.pop(name, None)
        for kind in _LABELLED:
            if not self._labelled.get((kind, name)):
                self._labelled.pop((kind, name), None)
        return peers

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

    def _index(self, agent: Agent) -> set[NamespacedName]:
        """Record an Agent's references before it is reconciled, so that `callers` is complete.

        Returns the Agents whose callers may have changed. Without it a starting operator would
        write access files without callers.
        """
        try:
            wanted = references(agent, self.domain, self._shared_urls)
        except (AttributeError, LookupError, TypeError, ValueError):
            return set()  # its reconcile meets the same, and says so
        return self._set_references(agent.namespaced_name, wanted)

    def _set_references(
        self, name: NamespacedName, wanted: frozenset[Reference]
    ) -> set[NamespacedName]:
        """Record an Agent's references; return the Agents added to or removed from them."""
        before = self._referrers.set_references(name, wanted)
        return {one for one in _names(before ^ wanted, AGENT) if one in self._objects[AGENT]}

    def _affected_agents(self, kind: Kind, content: Object) -> set[NamespacedName]:
        """Return the Agents to reconcile when an object has changed."""
        namespace, name = namespaced_name_of(content)
        affected = set(self._referrers.of((kind.name, namespace, name)))
        if kind in {POD, CONFIG_MAP, CRON_JOB} and (agent_name := agent_name_of(content)):
            affected.add(agent_name)
        elif kind is AGENT or kind in _CHILDREN:  # a child has the name of its Agent
            affected.add((namespace, child_owner(name)))
        agents = {one for one in affected if one in self._objects[AGENT] or kind is AGENT}
        if kind is JOB and (agent_name := agent_name_of(content)):  # its Agent may be gone
            agents.add(agent_name)
        return agents


def _names(wanted: frozenset[Reference], kind: Kind) -> list[NamespacedName]:
    return [(namespace, name) for kind_name, namespace, name in wanted if kind_name == kind.name]


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
