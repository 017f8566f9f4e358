"""What the watches have told so far: the objects that decisions are made of.

Kopf's watches put objects in; so does every answer to a write, so that the operator never decides
on less than it knows. An older version of an object never replaces a newer one, and a list that
was made before a deletion does not bring back what the watch has told to be gone.

Not here: what follows from it (`plan`, `status`), and Secrets and ConfigMaps, which are not read.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from diptych_operator.desired.references import Referent, Surroundings, referents
from diptych_operator.resources.agent import Agent, agent_of
from diptych_operator.resources.kinds import (
    AGENT,
    DEPLOYMENT,
    FIELD_MANAGER,
    INSTANCE,
    NAMESPACE,
    NETWORK_POLICY,
    OWNED,
    POD,
    SERVICE,
    Kind,
    Name,
    Object,
    name_of,
)
from diptych_operator.status.conditions import Shortage

_KEPT_OF_PODS = {
    "phase",
    "podIP",
    "conditions",
    "message",
    "containerStatuses",
    "initContainerStatuses",
}


class World:
    """Everything known. `watched` are the namespaces that are looked into; None means all."""

    def __init__(
        self, watched: frozenset[str] | None = None, domain: str = "cluster.local"
    ) -> None:
        self.watched = watched
        self.domain = domain
        self.shortages: dict[Name, tuple[Shortage, ...] | None] = {}
        """What each agent's pods miss, if they were asked; None if none of them has answered."""
        self.configs: dict[Name, Object] = {}
        """The ConfigMap that each agent is to have, as it was decided last."""
        self.squatted: set[Name] = set()
        """Agents of whose ConfigMap's name somebody else has made one."""
        self._news: set[Name] = set()
        self._gone: dict[Kind, dict[Name, int]] = defaultdict(dict)
        self._objects: dict[Kind, dict[Name, Object]] = defaultdict(dict)
        self._pods: dict[Name, dict[str, Object]] = defaultdict(dict)
        self._referrers: dict[Referent, set[Name]] = defaultdict(set)
        self._referents: dict[Name, frozenset[Referent]] = {}

    def put(self, kind: Kind, content: Object) -> set[Name]:
        """Take an object in, and name the agents that it is news for."""
        name = name_of(content)
        known = self._objects[kind].get(name)
        if known is not None and _version(known) >= _version(content) >= 0:
            return set()
        if 0 <= _version(content) <= self._gone[kind].get(name, -1):
            return set()
        self._note_news(kind, known, content)
        self._objects[kind][name] = _trimmed(kind, content)
        if kind is POD and (owner := _instance(content)):
            self._pods[owner][name[1]] = self._objects[kind][name]
        return self._concerned(kind, content)

    def drop(self, kind: Kind, content: Object) -> set[Name]:
        """Forget an object that was deleted, unless another has taken its name."""
        name = name_of(content)
        self._gone[kind][name] = max(self._gone[kind].get(name, -1), _version(content))
        known = self._objects[kind].get(name)
        if known is None or known["metadata"].get("uid") != content["metadata"].get("uid"):
            return set()
        self._note_news(kind, known, None)
        del self._objects[kind][name]
        if kind is POD and (owner := _instance(content)):
            self._pods[owner].pop(name[1], None)
        return self._concerned(kind, content)

    def missing(
        self, kind: Kind, namespace: str, found: Iterable[Object], version: int
    ) -> tuple[Object, ...]:
        """Give what is known and not in a list of this version: it was deleted before."""
        names = set(map(name_of, found))
        gone = self._gone[kind]
        self._gone[kind] = {name: at for name, at in gone.items() if at > version}
        return tuple(
            content
            for name, content in self._objects[kind].items()
            if name not in names and namespace in {"", name[0]} and _version(content) <= version
        )

    def take_news(self) -> set[Name]:
        """Name, once, the agents of which pods or referents have changed in what they can do."""
        news, self._news = self._news, set()
        return news

    def find(self, kind: Kind, name: Name) -> Object | None:
        return self._objects[kind].get(name)

    def agent(self, name: Name) -> Agent | None:
        content = self._objects[AGENT].get(name)
        return agent_of(content) if content else None

    def agents(self) -> Iterator[Name]:
        yield from self._objects[AGENT]

    def pods(self, name: Name) -> tuple[Object, ...]:
        """Give the pods of an agent."""
        return tuple(self._pods.get(name, {}).values())

    def owned(self, agent: Agent) -> Iterator[tuple[Kind, Object]]:
        """Give what is known to be owned by an agent."""
        for kind in OWNED:
            found = self._objects[kind].get(agent.full_name)
            if found and belongs(found, agent):
                yield kind, found

    def deployment(self, agent: Agent) -> Object | None:
        return dict(self.owned(agent)).get(DEPLOYMENT)

    def surroundings(self, agent: Agent) -> Surroundings:
        """Give what a decision about an agent depends on, and remember that it does."""
        wanted = referents(agent, self.domain)
        self._remember(agent.full_name, wanted)
        agents = {(r[1], r[2]): self.agent((r[1], r[2])) for r in wanted if r[0] == "Agent"}
        names = [(r[1], r[2]) for r in wanted if r[0] == "Service"]
        services = {name: self.find(SERVICE, name) for name in names}
        own = dict(self.owned(agent))
        namespace = self.find(NAMESPACE, ("", agent.namespace))
        labels = {} if namespace is None else namespace["metadata"].get("labels", {})
        return Surroundings(
            services={name: found for name, found in services.items() if found},
            agents={name: found for name, found in agents.items() if found},
            namespaces={agent.namespace: labels} if namespace else {},
            watched=self.watched,
            deployment=own.get(DEPLOYMENT),
            policy=own.get(NETWORK_POLICY),
        )

    def forget(self, name: Name) -> None:
        """Forget what an agent that is gone depended on."""
        self._remember(name, frozenset())
        self.shortages.pop(name, None)
        self.configs.pop(name, None)
        self.squatted.discard(name)
        if not self._pods.get(name):
            self._pods.pop(name, None)

    def readiness(self) -> dict[str, int]:
        """Count the agents by the status of their Ready condition."""
        counts: dict[str, int] = defaultdict(int)
        for content in self._objects[AGENT].values():
            counts[readiness(content)] += 1
        return counts

    def _concerned(self, kind: Kind, content: Object) -> set[Name]:
        """Name the agents that are to be reconciled when an object has changed."""
        namespace, name = name_of(content)
        found = set(self._referrers.get((kind.name, namespace, name), ()))
        if kind is POD and (owner := _instance(content)):
            found.add(owner)
        elif kind is AGENT or kind in OWNED:  # what an agent owns is called like it
            found.add((namespace, name))
        return {one for one in found if one in self._objects[AGENT] or kind is AGENT}

    def _note_news(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        content = after or before or {}
        namespace, name = name_of(content)
        if kind is POD and (owner := _instance(content)):
            self._news.add(owner)
        elif (kind is AGENT and readiness(before) != readiness(after)) or (
            kind is SERVICE and (before is None or after is None)
        ):
            for referent in ("Agent", "Service"):  # an Agent's Service is called like it
                self._news |= self._referrers.get((referent, namespace, name), set())

    def _remember(self, name: Name, wanted: frozenset[Referent]) -> None:
        before = self._referents.get(name, frozenset())
        for referent in before - wanted:
            self._referrers[referent].discard(name)
            if not self._referrers[referent]:
                del self._referrers[referent]
        for referent in wanted - before:
            self._referrers[referent].add(name)
        if wanted:
            self._referents[name] = wanted
        else:
            self._referents.pop(name, None)


def belongs(content: Object, agent: Agent) -> bool:
    """Say whether an object is an agent's, be it that somebody has removed its owner."""
    owner = controller(content)
    managers = content["metadata"].get("managedFields", ())
    applied = any(
        entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"
        for entry in managers
    )
    return applied if owner is None else bool(owner["uid"] == agent.uid)


def controls(agent: Agent, content: Object) -> bool:
    """Say whether an agent is the controller of an object, by its uid."""
    owner = controller(content)
    return owner is not None and bool(owner["uid"] == agent.uid)


def readiness(content: Object | None) -> str:
    """Give the status of an Agent's Ready condition."""
    conditions = ((content or {}).get("status") or {}).get("conditions", ())
    return next((c["status"] for c in conditions if c["type"] == "Ready"), "Unknown")


def controller(content: Object) -> Object | None:
    """Give the reference to the object that controls this one."""
    owners = content["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), None)


def _instance(content: Object) -> Name | None:
    found = content["metadata"].get("labels", {}).get(INSTANCE)
    return (content["metadata"]["namespace"], found) if found else None


def _version(content: Object) -> int:
    version = content["metadata"].get("resourceVersion", "")
    return int(version) if version.isdigit() else -1


def _trimmed(kind: Kind, content: Object) -> Object:
    """Leave out what no decision needs: most of it is the record of who has set which field."""
    metadata: dict[str, Any] = dict(content["metadata"])
    metadata["managedFields"] = [
        {"manager": entry.get("manager"), "operation": entry.get("operation")}
        for entry in metadata.get("managedFields", ())
    ]
    trimmed = {**content, "metadata": metadata}
    if kind is POD:
        trimmed.pop("spec", None)
        status = content.get("status") or {}
        trimmed["status"] = {name: v for name, v in status.items() if name in _KEPT_OF_PODS}
    return trimmed
