"""Reconciles one Agent: gather the world, ask what is to be, apply, delete surplus, say how it is.

Whatever the cause, it is always the whole: what is right already costs no request. So the final
state depends on the Agents alone, and being killed between any two writes does no harm.

Not here: what is to be (`children`), what is said of it (`status`), when it is due (`due`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from diptych_operator.children import Children, Platform, TooLargeError, desired_children
from diptych_operator.cluster import Cluster
from diptych_operator.deployment import config_in
from diptych_operator.drift import digest, has_drifted
from diptych_operator.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    MissingError,
    RefusedError,
)
from diptych_operator.events import FORMER_AGENT, event_of, transitions
from diptych_operator.kinds import (
    AGENT,
    CONFIG_MAP,
    OWNED,
    SERVICE,
    Kind,
    Name,
    Object,
    kind_of,
    name_of,
)
from diptych_operator.merge import MergeError
from diptych_operator.references import Surroundings, loose_ends
from diptych_operator.spec import Agent
from diptych_operator.status import Refusal, View, agent_status
from diptych_operator.world import World, belongs, controller

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
        self._applied: dict[tuple[Kind, Name], tuple[str, str]] = {}

    async def reconcile(self, name: Name) -> float | None:
        """Reconcile an agent; give the seconds after which to do it again, if that is needed.

        Raises `ClusterError` if the API did not do its part and may the next time.
        """
        agent = self._world.agent(name)
        if agent is None or agent.is_going:
            self._world.forget(name)
            for kind in OWNED:
                self._applied.pop((kind, name), None)
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
            await self._cluster.delete(CONFIG_MAP, (agent.namespace, name))
        child = children.config
        try:
            if name_of(child)[1] != running:
                await self._cluster.create(child)
            for child, found in zip(children.others, live, strict=True):
                await self._apply(child, found if isinstance(found, dict) else None)
        except RefusedError as error:
            if name_of(children.config)[1] != running:  # no pod will ever need it
                await self._cluster.delete(CONFIG_MAP, name_of(children.config))
            return _refused(child, error)
        await self._delete_surplus(agent, children)
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
        return Refusal(
            "NameConflict",
            f"There is a {kind.name} called {name[1]} that does not belong to this Agent; rename "
            f"the Agent, or delete that {kind.name}.",
        )

    async def _apply(self, child: Object, found: Object | None) -> None:
        kind, name = kind_of(child), name_of(child)
        if found is not None:
            version = found["metadata"].get("resourceVersion", "")
            if not has_drifted(found, child):
                return
            if self._applied.get((kind, name)) == (digest(child), version):
                return  # the API says the same in other words
        uid = found["metadata"]["uid"] if found else None
        answer = await self._cluster.apply(child, uid)
        self._world.put(kind, answer)
        self._applied[kind, name] = digest(child), answer["metadata"].get("resourceVersion", "")

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


def _refused(child: Object, error: RefusedError) -> Refusal:
    return Refusal("Refused", f"The cluster does not take the {child['kind']}: {error}")
