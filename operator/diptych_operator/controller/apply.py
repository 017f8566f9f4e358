"""Writes an Agent's children: applies those that have drifted, deletes those it does not need.

Server-side apply merges with the fields of other field managers. The result can be invalid though
the manifest is fine: say, a port of the same name and another number next to ours. So an object
that the Agent controls is overwritten, once, if applying it is refused. If that is refused too,
the manifest is at fault, and nothing has changed.
"""

import logging
from collections.abc import Collection, Sequence
from enum import Enum
from http import HTTPStatus

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.children import Children
from diptych_operator.desired.drift import digest, has_drifted, locked_additions
from diptych_operator.desired.locked_fields import LockedField
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import InvalidError
from diptych_operator.resources.agent import Agent, agent_of, is_controlled_by
from diptych_operator.resources.kinds import (
    AGENT,
    APPLIED_DIGEST,
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    OVERWRITE_MANAGER,
    ROUTE_KINDS,
    Kind,
    NamespacedName,
    Object,
    kind_of,
    namespaced_name_of,
)

_log = logging.getLogger(__name__)


class Verb(Enum):
    """What was done to an object."""

    CREATED = "created"
    APPLIED = "applied"
    DELETED = "deleted"


def log_change(agent: Agent | NamespacedName, verb: Verb, kind: Kind, name: str, why: str) -> None:
    """Log a change of the object `name`; for a deleted Agent only its name is known.

    With `--log-format json` the line has the same in fields of its own.
    """
    agent_name = agent.namespaced_name if isinstance(agent, Agent) else agent
    change = {
        "agent": "/".join(agent_name),
        "generation": agent.generation if isinstance(agent, Agent) else 0,
        "verb": verb.value,
        "kind": kind.name,
        "name": name,
        "why": why,
    }
    sentence = "%(agent)s, generation %(generation)d: %(verb)s %(kind)s %(name)s: %(why)s"
    _log.info(sentence, change, extra={"change": change})


class Answers:
    """Puts the API's responses to our writes into the cache, and queues the affected Agents.

    The watch event that follows is then no change. The writer itself is not queued: a webhook that
    changes each write would have it reconciled forever.
    """

    def __init__(self, cache: ObjectCache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue

    def put_agent(self, answer: Object) -> None:
        """Cache the response to a status write; a status alone affects no other Agent."""
        former = self._cache.find(AGENT, namespaced_name_of(answer))
        affected = self._cache.put(AGENT, answer)
        if former is None or _is_edited(former, answer):
            self._queue_all(affected)

    def put_child(self, kind: Kind, answer: Object, writer: NamespacedName) -> None:
        """Cache the response to a child's write; queue its `writer` if the child's status
        changed.
        """
        former = self._cache.find(kind, namespaced_name_of(answer))
        affected = self._cache.put(kind, answer)
        if former is None or former.get("status") == answer.get("status"):
            affected -= {writer}
        self._queue_all(affected)

    def _queue_all(self, names: set[NamespacedName]) -> None:
        for name in names:
            self._queue.add(name)


def _is_edited(former: Object, answer: Object) -> bool:
    """Whether anything but an Agent's status has changed."""
    before, after = agent_of(former), agent_of(answer)
    return (before.uid, before.generation, before.is_terminating) != (
        after.uid,
        after.generation,
        after.is_terminating,
    )


class Applier:
    """Writes the children of all Agents, and remembers what the API made of them."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        answers: Answers,
        locked: Sequence[LockedField] = (),
    ) -> None:
        """Fields of the pod template that are `locked` are undone where others added them."""
        self._client = client
        self._cache = cache
        self._locked = locked
        self._answers = answers
        self._applied: dict[NamespacedName, dict[tuple[Kind, str], tuple[str, str]]] = {}
        """By Agent, kind and name: the digest applied last, and the version that resulted."""

    def forget(self, name: NamespacedName) -> None:
        """Forget the children of an Agent that is gone."""
        self._applied.pop(name, None)

    async def apply_if_drifted(self, agent: Agent, desired: Object, live: Object | None) -> None:
        """Apply a child if it does not exist or has drifted.

        Raises `InvalidError` if the API does not accept it in any way, and other `ApiError`s.
        """
        kind, name = kind_of(desired), namespaced_name_of(desired)
        applied = self._applied.setdefault(agent.namespaced_name, {})
        locked: list[str] = []
        if live is not None:
            if kind is DEPLOYMENT:
                locked = locked_additions(live, self._locked)
            if not locked and not has_drifted(live, desired):
                return
            if applied.get((kind, name[1])) == (digest(desired), _version(live)):
                return  # it was applied, and the API server has only normalised values
        answer = await self._write(agent, desired, live, is_whole=bool(locked))
        if live is None or _version(answer) != _version(live):
            verb = Verb.CREATED if live is None else Verb.APPLIED
            why = f"somebody has added what is locked: {', '.join(locked)}" if locked else ""
            log_change(agent, verb, kind, name[1], why or _reason(live, desired))
        self._answers.put_child(kind, answer, agent.namespaced_name)
        applied[kind, name[1]] = digest(desired), _version(answer)

    async def delete_surplus(
        self, agent: Agent, desired: Collection[Kind], children: Children
    ) -> None:
        """Delete children of all but the desired kinds, and obsolete ones. Raises `ApiError`."""
        for kind, live in tuple(self._cache.children(agent)):
            if kind not in desired:
                await self._delete(agent, kind, live, "it is not needed")
        for kind, live in children.obsolete_schedules:
            await self._delete(agent, kind, live, "the Agent has no such schedule")
        for live in children.obsolete_config_maps:
            await self._delete(agent, CONFIG_MAP, live, "no pod mounts it any more")

    async def unexpose(self, agent: Agent, network_policy: Object) -> None:
        """Delete an Agent's routes; apply the policy that admits nobody. Raises `ApiError`.

        The rest of an Agent that may not be exposed as requested stays as it is.
        """
        for kind, live in tuple(self._cache.children(agent)):
            if kind in ROUTE_KINDS:
                await self._delete(agent, kind, live, "the Agent may not be exposed like that")
            elif kind is NETWORK_POLICY:
                await self.apply_if_drifted(agent, network_policy, live)

    async def _delete(self, agent: Agent, kind: Kind, live: Object, why: str) -> None:
        if "deletionTimestamp" in live["metadata"]:
            return
        await self._client.delete(kind, namespaced_name_of(live), live["metadata"]["uid"])
        log_change(agent, Verb.DELETED, kind, live["metadata"]["name"], why)
        if kind in ROUTE_KINDS:  # no watch tells of it
            self._cache.remove(kind, live)

    async def _write(
        self, agent: Agent, desired: Object, live: Object | None, *, is_whole: bool
    ) -> Object:
        """Write a child; `is_whole` also removes others' additions."""
        if live is None:
            return await self._client.apply(desired, None)
        try:
            if is_whole or _was_overwritten(live):
                return await self._client.overwrite(live, desired)
            return await self._client.apply(desired, live["metadata"]["uid"])
        except InvalidError as error:
            is_repairable = error.status == HTTPStatus.UNPROCESSABLE_ENTITY
            if not is_repairable or not is_controlled_by(live, agent):
                raise
            return await self._repair(desired, live, error)

    async def _repair(self, desired: Object, live: Object, error: InvalidError) -> Object:
        """Overwrite an object, or recreate it if an immutable field differs."""
        kind, name = kind_of(desired), namespaced_name_of(desired)
        if not _must_be_recreated(live, desired):
            answer = await self._client.overwrite(live, desired)
            _log.warning("%s/%s: applying its %s failed: %s", *name, kind.name, error)
            return answer
        if not await self._client.can_create(desired):
            raise error
        await self._client.delete(kind, name, live["metadata"]["uid"])
        _log.warning("%s/%s: recreated its %s, which was not ours", *name, kind.name)
        return await self._client.apply(desired, None)


def _reason(live: Object | None, desired: Object) -> str:
    """Return the logged reason of a child's write."""
    if live is None:
        return "it was not there"
    noted = (live["metadata"].get("annotations") or {}).get(APPLIED_DIGEST)
    wanted = desired["metadata"]["annotations"][APPLIED_DIGEST]
    return "what the Agent needs has changed" if noted != wanted else "somebody has changed it"


def _version(content: Object) -> str:
    version: str = content["metadata"].get("resourceVersion", "")
    return version


def _was_overwritten(live: Object) -> bool:
    """Whether `OVERWRITE_MANAGER` may own a field, which applying would then not remove."""
    managers = live["metadata"].get("managedFields", ())
    return any(entry.get("manager") == OVERWRITE_MANAGER for entry in managers)


def _must_be_recreated(live: Object, desired: Object) -> bool:
    """Whether a Deployment's selector or an immutable ConfigMap's data differ."""
    if kind_of(desired) is DEPLOYMENT:
        return bool(live["spec"].get("selector") != desired["spec"]["selector"])
    return bool(live.get("immutable") and live.get("data") != desired.get("data"))
