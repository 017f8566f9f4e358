"""The access files of all Agents: written before their pods, and again when they change.

The operator has no right to read or change ConfigMaps. It sees a ConfigMap's metadata (a dry run
of its deletion shows it), and replaces one by deleting it and creating it anew. Pods keep the file
that they have meanwhile. What it has written it knows again by digest and version: a ConfigMap that
somebody has edited is replaced, too, because it says who is let in. Where a rule of the cluster
denies a new one, an old one stays and an edited one goes all the same; the reconciler says so.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.poll_schedule import PollSchedule
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.access import (
    AccessSettings,
    TokenIssuer,
    access_config_map_name,
    access_text,
)
from diptych_operator.desired.children import access_config_map
from diptych_operator.desired.metadata import MetadataSettings
from diptych_operator.desired.rollout import mounts_config_map
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError, ForbiddenError, UnavailableError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    AGENT,
    APPLIED_DIGEST,
    CONFIG_MAP,
    FIELD_MANAGER,
    NamespacedName,
    Object,
    namespaced_name_of,
)
from diptych_operator.resources.ownership import (
    controller_of,
    has_lost_its_owner,
    is_controlled_by,
)

PERIOD = 60.0
"""Seconds between two looks at a file that should not have changed, if there are few Agents."""
TICK = 0.2
"""Seconds between two looks for changes. A pod that starts mounts its file a second later and looks
again only after a minute: Agents that are made together should know each other by then."""
UNAVAILABLE_PAUSE = 5.0
"""Seconds without requests after the API was unavailable, unless it asks for another time."""

_CONCURRENCY = 8
_log = logging.getLogger(__name__)


class AccessFileState(Enum):
    """What came of writing an access file."""

    WRITTEN = auto()
    FOREIGN = auto()
    """There is a ConfigMap of its name, which is not the Agent's."""
    ISSUER_UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class ControllerParts:
    """What is needed of the controller: the API, what is observed, what is to do, and where."""

    client: KubernetesClient
    cache: ObjectCache
    queue: WorkQueue
    claims: NamespaceClaims


class AccessFiles:
    """The access files of all Agents that ask their callers for tokens."""

    def __init__(
        self,
        controller: ControllerParts,
        issuer: ClusterIssuer,
        settings: AccessSettings,
        metadata: MetadataSettings | None = None,
    ) -> None:
        self.issuer = issuer
        self._client = controller.client
        self._cache = controller.cache
        self._queue = controller.queue
        self._claims = controller.claims
        self._settings = settings
        self._metadata = metadata or MetadataSettings()
        self._schedule = PollSchedule()
        self._written: dict[NamespacedName, tuple[str, str]] = {}
        """Digest and version of each file that was written or found as it should be."""
        self._hindered: set[NamespacedName] = set()
        """Whose file is somebody else's, or denied: the reconciler tries again, and says so."""
        self._issuer_of_files: TokenIssuer | None = None

    async def ensure(self, agent: Agent) -> AccessFileState:
        """See to it that pods can start: write the file unless pods have it. Raises `ApiError`.

        While pods mount it, `run` keeps it true, and nothing is requested here.
        """
        is_mounted, is_hindered = self.is_mounted(agent), agent.namespaced_name in self._hindered
        if agent.is_open or (is_mounted and not is_hindered):
            return AccessFileState.WRITTEN
        if self.issuer.current is None:
            await self.issuer.refresh()
        return await self._write(agent, is_new=not is_mounted)

    def forget(self, name: NamespacedName) -> None:
        """Forget an Agent that is gone."""
        self._written.pop(name, None)
        self._hindered.discard(name)

    async def run(self) -> None:
        """Look at each file once in `PERIOD`, and soon after it should have changed, forever."""
        while True:
            self._note_changes()
            names = iter(self._schedule.pop_due(self._cache.agent_names(), PERIOD))
            pauses = await asyncio.gather(*(self._look_at_all(names) for _ in range(_CONCURRENCY)))
            await asyncio.sleep(max(TICK, *pauses))

    async def look(self, name: NamespacedName) -> None:
        """Write an Agent's file if it is not as it should be. Raises `ApiError`."""
        agent = self._cache.agent(name)
        if agent is None or agent.is_terminating or agent.is_open:
            return
        if not (self._claims.holds(agent.namespace) and self.is_mounted(agent)):
            return  # another operator serves it, or without pods the reconciler deals with it
        was_hindered = name in self._hindered
        with contextlib.suppress(ForbiddenError):  # which the reconciler meets, too
            await self._write(agent)
        if (name in self._hindered) != was_hindered:
            self._queue.add(name)

    def _note_changes(self) -> None:
        """Make due what should say something else than was written."""
        changed = self._cache.pop_access_changes()
        if self.issuer.current != self._issuer_of_files:
            self._issuer_of_files = self.issuer.current
            changed |= set(self._cache.agent_names())
        for name in changed:
            agent, written = self._cache.agent(name), self._written.get(name)
            if agent and written and (desired := self._desired(agent)):
                if _digest(desired) != written[0]:
                    self._schedule.expedite(name, 0)
            elif agent:
                self._schedule.expedite(name, 0)

    async def _look_at_all(self, names: Iterator[NamespacedName]) -> float:
        """Look at one file after another; give the seconds that the API needs a pause."""
        for name in names:
            try:
                await self.look(name)
            except UnavailableError as error:
                self._schedule.expedite(name, 0)
                return error.retry_after or UNAVAILABLE_PAUSE
            except ApiError as error:
                _log.debug("%s/%s: cannot write its access file: %s", *name, error)
        return 0.0

    async def _write(self, agent: Agent, *, is_new: bool = False) -> AccessFileState:
        """Write a file if it is not as it should be; one that `is_new` is probably not there."""
        try:
            return await self._write_or_raise(agent, is_new)
        except ForbiddenError:
            self._hindered.add(agent.namespaced_name)
            raise

    async def _write_or_raise(self, agent: Agent, is_new: bool) -> AccessFileState:
        desired, own = self._desired(agent), agent.namespaced_name
        if desired is None:
            return AccessFileState.ISSUER_UNKNOWN
        if is_new and (created := await self._client.create(desired)):
            return self._note_written(own, created)
        name = namespaced_name_of(desired)
        found = await self._client.read_metadata(CONFIG_MAP, name)
        if found is not None:
            if not _may_replace(found, agent):
                self._hindered.add(own)
                return AccessFileState.FOREIGN
            if is_controlled_by(found, agent) and self._is_as_written(own, found, desired):
                return self._note_written(own, found)
            if is_controlled_by(found, agent) and self._is_untouched(own, found):
                await self._client.can_create(desired)  # it raises if a rule denies that
            await self._client.delete(CONFIG_MAP, name, found["metadata"]["uid"])
        try:
            created = await self._client.create(desired)
        except ApiError as error:
            _log.warning("%s/%s: its access file is gone, and cannot be made: %s", *own, error)
            raise
        if created is None:
            raise UnavailableError(f"ConfigMap {name[1]} came between its deletion and creation")
        return self._note_written(own, created)

    def _note_written(self, name: NamespacedName, live: Object) -> AccessFileState:
        self._hindered.discard(name)
        self._written[name] = _digest(live), live["metadata"]["resourceVersion"]
        return AccessFileState.WRITTEN

    def _is_as_written(self, name: NamespacedName, found: Object, desired: Object) -> bool:
        """Say whether a ConfigMap holds what is desired, as far as its metadata tells."""
        if not self._is_untouched(name, found):
            _log.warning("%s/%s: somebody has changed its access file; replacing it", *name)
            return False
        return _digest(found) == _digest(desired)

    def _is_untouched(self, name: NamespacedName, found: Object) -> bool:
        """Say whether nobody has edited a ConfigMap, as far as its metadata tells."""
        version = found["metadata"]["resourceVersion"]
        written = self._written.get(name, ("", ""))[1]
        managers = {entry.get("manager") for entry in found["metadata"].get("managedFields", ())}
        return version == written or (not written and managers <= {FIELD_MANAGER})

    def _desired(self, agent: Agent) -> Object | None:
        if (issuer := self.issuer.current) is None:
            return None
        text = access_text(agent, self._cache.callers(agent), issuer, self._settings)
        return access_config_map(agent, text, self._metadata)

    def is_mounted(self, agent: Agent) -> bool:
        """Say whether pods have an Agent's file, be it an old one."""
        return mounts_config_map(self._cache.deployment(agent), access_config_map_name(agent))


def _may_replace(found: Object, agent: Agent) -> bool:
    """Say whether a ConfigMap is the Agent's, has lost its owner, or was a former Agent's."""
    owner = controller_of(found) or {}
    is_former = (owner.get("kind"), owner.get("name")) == (AGENT.name, agent.name)
    return is_controlled_by(found, agent) or has_lost_its_owner(found) or is_former


def _digest(content: Object) -> str:
    annotations = content["metadata"].get("annotations") or {}
    return str(annotations.get(APPLIED_DIGEST, ""))
