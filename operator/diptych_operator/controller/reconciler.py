"""Reconciles one Agent: gather the world, ask what is to be, apply, delete surplus, say how it is.

Whatever the cause, it is always the whole: what is right already costs no request. So the final
state depends on the Agents alone, and being killed between any two writes does no harm.

Not here: what is to be (`children`), what is said of it (`status`), when it is due (`due`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from diptych_operator.controller.apply import Applying
from diptych_operator.controller.config_maps import delete_config, make_config
from diptych_operator.controller.store import World, belongs, controller
from diptych_operator.desired.children import Children, Platform, TooLargeError, desired_children
from diptych_operator.desired.deployment import config_in
from diptych_operator.desired.references import Surroundings, loose_ends
from diptych_operator.desired.strategic_merge import MergeError
from diptych_operator.kubernetes.client import Cluster
from diptych_operator.kubernetes.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    MissingError,
    RefusedError,
)
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    AGENT,
    SERVICE,
    Name,
    Object,
    kind_of,
    name_of,
)
from diptych_operator.status.conditions import Refusal, View, agent_status
from diptych_operator.status.events import FORMER_AGENT, event_of, transitions

RETRY_SECONDS = 30.0
"""After which something is tried again that will fail until somebody changes it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What an agent is to own; without children there is a refusal that says why."""

    children: Children | None
    refusal: Refusal | None = None


class _NotYet(Exception):
    """What is in the way will go by itself."""


class Reconciler:
    """Brings the cluster to what the Agents say. `now` gives the time as the API writes it."""

    def __init__(
        self, cluster: Cluster, world: World, platform: Platform, now: Callable[[], str]
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._platform = platform
        self._now = now
        self._applying = Applying(cluster, world)

    async def reconcile(self, name: Name) -> float | None:
        """Reconcile an agent; give the seconds after which to do it again, if that is needed.

        Raises `ClusterError` if the API did not do its part and may the next time.
        """
        agent = self._world.agent(name)
        if agent is None or agent.is_going:
            self._world.forget(name)
            self._applying.forget(name)
            return None
        around = self._world.surroundings(agent)
        decision = decided(agent, around, self._platform)
        refusal, obstacle = decision.refusal, None
        if decision.children is not None:
            try:
                refusal = await self._carry_out(agent, decision.children)
            except _NotYet as error:
                obstacle = Refusal(FORMER_AGENT, str(error))
            except ForbiddenError as error:
                obstacle = Refusal("Forbidden", f"The operator may not do its work: {error}")
                _log.warning("%s/%s: %s", *name, error)
        view = View(
            refusal=refusal,
            obstacle=obstacle,
            loose_ends=loose_ends(agent, around, self._platform.network.domain),
            pods=self._world.pods(name),
            shortages=self._world.shortages.get(name),
            former=None if name in self._world.shortages else _told_degraded(agent),
        )
        await self._tell(name, view)
        return RETRY_SECONDS if refusal or obstacle else None

    async def _carry_out(self, agent: Agent, children: Children) -> Refusal | None:
        """Apply what differs and delete what is left over; say what cannot be had."""
        live = [await self._own(agent, child) for child in children.others]
        if taken := next((one for one in live if isinstance(one, Refusal)), None):
            return taken
        running = config_in(self._world.deployment(agent))
        for name in children.obsolete_configs:  # first: the Deployment tells of them until then
            await delete_config(self._cluster, agent, name)
        child = children.config
        try:
            refusal = await self._make_config(agent, child, running)
            if refusal and name_of(child)[1] != running:
                return refusal
            for child, found in zip(children.others, live, strict=True):
                await self._applying.bring(agent, child, found if isinstance(found, dict) else None)
        except RefusedError as error:
            if name_of(children.config)[1] != running:  # no pod will ever need it
                await delete_config(self._cluster, agent, name_of(children.config)[1])
            return _refused(child, error)
        await self._delete_surplus(agent, children)
        return refusal

    async def _make_config(
        self, agent: Agent, config: Object, running: str | None
    ) -> Refusal | None:
        """Make the ConfigMap if no pod runs with it yet; while one does, `configs` looks after."""
        self._world.configs[agent.full_name] = config
        name = name_of(config)[1]
        if name == running and agent.full_name not in self._world.squatted:
            return None
        if await make_config(self._cluster, agent, config) == "foreign":
            return _taken("ConfigMap", name, "delete it")
        self._world.squatted.discard(agent.full_name)
        return None

    async def _own(self, agent: Agent, child: Object) -> Object | Refusal | None:
        """Find the agent's object of this kind as it is; None if its name is free."""
        kind, name = kind_of(child), name_of(child)
        found = self._world.find(kind, name)
        if found is None and kind is not SERVICE:  # of the others, only our own are watched
            found = await self._cluster.find(kind, name)
        if found is None or belongs(found, agent):
            return found
        owner = controller(found) or {}
        if (owner.get("kind"), owner.get("name")) == (AGENT.name, agent.name):
            raise _NotYet(f"The {kind.name} of a former Agent called {agent.name} is still there.")
        cure = f"rename the Agent, or delete that {kind.name}"
        return _taken(kind.name, name[1], cure)

    async def _delete_surplus(self, agent: Agent, children: Children) -> None:
        desired = {kind_of(child) for child in children.others}
        for kind, found in tuple(self._world.owned(agent)):
            if kind not in desired and "deletionTimestamp" not in found["metadata"]:
                await self._cluster.delete(kind, name_of(found), found["metadata"]["uid"])

    async def _tell(self, name: Name, view: View) -> None:
        """Write the status if it says something new, and tell of what has changed."""
        agent = self._world.agent(name)
        if agent is None:
            return
        view = replace(view, deployment=self._world.deployment(agent))
        status = agent_status(agent, view, self._now())
        if status == agent.status:
            return
        try:
            self._world.put(AGENT, await self._cluster.write_status(name, agent.uid, status))
        except (MissingError, ConflictError):
            return  # it is gone, and what has followed it will be due by itself
        except ForbiddenError as error:
            _log.warning("%s/%s: %s", *name, error)
            return
        for transition in transitions(agent.status, status):
            await self._report(event_of(agent, transition, self._now()))

    async def _report(self, event: Object) -> None:
        try:
            await self._cluster.create(event)
        except ClusterError as error:  # what it tells stands in the status, too
            _log.debug("an Event was lost: %s", error)


def decided(agent: Agent, around: Surroundings, platform: Platform) -> Decision:
    """Say what an agent is to own, or why nothing can be made of its manifest."""
    try:
        return Decision(desired_children(agent, around, platform))
    except MergeError as error:
        return Decision(None, Refusal("PodTemplateInvalid", f"{error}."))
    except TooLargeError as error:
        return Decision(None, Refusal("TooLarge", f"{error}."))
    except ValueError as error:
        return Decision(None, Refusal("InvalidUrl", f"A URL of the manifest is none: {error}."))


def _told_degraded(agent: Agent) -> Object | None:
    """Give the Degraded condition that stands in an agent's status."""
    conditions = agent.status.get("conditions", ())
    return next((dict(c) for c in conditions if c["type"] == "Degraded"), None)


def _taken(kind: str, name: str, cure: str) -> Refusal:
    sentence = f"There is a {kind} called {name} that does not belong to this Agent; {cure}."
    return Refusal("NameConflict", sentence)


def _refused(child: Object, error: RefusedError) -> Refusal:
    return Refusal("Refused", f"The cluster does not take the {child['kind']}: {error}")
