"""Writes an owner's children: applies those that have drifted, deletes those it does not need.

Server-side apply merges with the fields of other field managers. The result can be invalid though
the manifest is fine: say, a port of the same name and another number next to ours. So an object
that the owner controls is overwritten, once, if applying it is refused. If that is refused too,
the manifest is at fault, and nothing has changed.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from typing import TypeAlias

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.obstacles import (
    Blocked,
    as_refusal,
    blocker_of,
    check_ownership,
    kind_missing,
)
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.drift import digest, has_drifted, locked_additions
from diptych_operator.desired.locked_fields import LockedField
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ForbiddenError, InvalidError, NotFoundError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    APPLIED_DIGEST,
    CONFIG_MAP,
    DEPLOYMENT,
    OVERWRITE_MANAGER,
    ROUTE_KINDS,
    SERVICE,
    Kind,
    NamespacedName,
    Object,
    ObjectKey,
    kind_of,
    namespaced_name_of,
)
from diptych_operator.resources.owner import Owner, is_controlled_by, is_owned_by

ChildKey: TypeAlias = tuple[Kind, NamespacedName]
_log = logging.getLogger(__name__)


class Verb(Enum):
    """What was done to an object."""

    CREATED = "created"
    APPLIED = "applied"
    DELETED = "deleted"


def log_change(owner: Owner | ObjectKey, verb: Verb, kind: Kind, name: str, why: str) -> None:
    """Log a change of the object `name`; of a deleted owner only the key is known.

    With `--log-format json` the line has the same in fields of its own.
    """
    change = {
        "owner": str(owner.key if isinstance(owner, Owner) else owner),
        "generation": owner.generation if isinstance(owner, Owner) else 0,
        "verb": verb.value,
        "kind": kind.name,
        "name": name,
        "why": why,
    }
    sentence = "%(owner)s, generation %(generation)d: %(verb)s %(kind)s %(name)s: %(why)s"
    _log.info(sentence, change, extra={"change": change})


class Answers:
    """Puts the API's responses to our writes into the cache, and queues the affected owners.

    The watch event that follows is then no change. The writer itself is not queued: a webhook that
    changes each write would have it reconciled forever.
    """

    def __init__(self, cache: ObjectCache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue

    def put_owner(self, kind: Kind, answer: Object) -> None:
        """Cache the response to a status write; a status alone affects no other owner."""
        former = self._cache.find(kind, namespaced_name_of(answer))
        affected = self._cache.put(kind, answer)
        if former is None or _is_edited(former, answer):
            self._queue_all(affected)

    def put_child(self, kind: Kind, answer: Object, writer: ObjectKey) -> None:
        """Cache the response to a child's write; queue its `writer` if the child's status
        changed.
        """
        former = self._cache.find(kind, namespaced_name_of(answer))
        affected = self._cache.put(kind, answer)
        if former is None or former.get("status") == answer.get("status"):
            affected -= {writer}
        self._queue_all(affected)

    def _queue_all(self, owners: set[ObjectKey]) -> None:
        for owner in owners:
            self._queue.add(owner)


def _is_edited(former: Object, answer: Object) -> bool:
    """Whether anything but an owner's status has changed."""
    before, after = Owner.read(former), Owner.read(answer)
    return (before.uid, before.generation, before.is_terminating) != (
        after.uid,
        after.generation,
        after.is_terminating,
    )


class Applier:
    """Writes the children of all owners, and remembers what the API made of them."""

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
        self._applied: dict[ObjectKey, dict[tuple[Kind, str], tuple[str, str]]] = {}
        """By owner, kind and name: the digest applied last, and the version that resulted."""

    def forget(self, key: ObjectKey) -> None:
        """Forget the children of an owner that is gone."""
        self._applied.pop(key, None)

    async def find_live(
        self, owner: Owner, children: Iterable[Object]
    ) -> dict[ChildKey, Object | None]:
        """Find the objects of the children's names, and check that they are the owner's.

        A kind that the cluster does not have, as it may lack that of a route, is left out.
        Raises `Blocked` or `Rejected` for an object of somebody else, and `ApiError`.
        """
        found: dict[ChildKey, Object | None] = {}
        for child in children:
            kind, name = key = child_key(child)
            live = self._cache.find(kind, name)
            if live and kind in ROUTE_KINDS and not is_owned_by(live, owner):  # it may be gone now
                self._cache.remove(kind, live)
                live = None
            if live is None and kind is not SERVICE:  # of other kinds, the cache has our own only
                with contextlib.suppress(NotFoundError):
                    found[key] = await self._client.find(kind, name)
            else:
                found[key] = live
        check_ownership(owner, filter(None, found.values()))
        return found

    async def apply_all(
        self,
        owner: Owner,
        children: Iterable[Object],
        live: Mapping[ChildKey, Object | None],
        waits: Callable[[Object, Object | None], Blocked | None] = lambda *_: None,
    ) -> Blocked | None:
        """Apply children that have drifted; `waits` may keep one, by its live object, from it.

        Returns the obstacle of one that cannot be applied now, while others could. Raises
        `Rejected` for one that the API refuses, and `ApiError`.
        """
        obstacle = None
        for child in children:
            with as_refusal(child["kind"]):
                obstacle = await self._apply(owner, child, live, waits) or obstacle
        return obstacle

    async def _apply(
        self,
        owner: Owner,
        child: Object,
        live: Mapping[ChildKey, Object | None],
        waits: Callable[[Object, Object | None], Blocked | None],
    ) -> Blocked | None:
        kind, key = kind_of(child), child_key(child)
        if key not in live:
            return kind_missing(child)
        if obstacle := waits(child, live[key]):
            return obstacle
        try:
            await self.apply_if_drifted(owner, child, live[key])
        except ForbiddenError as error:
            if kind is not CONFIG_MAP or live[key] is None:
                raise
            _log.warning("%s: %s", owner.key, error)
            return Blocked(blocker_of(owner, error))  # pods go on with the former one
        return None

    async def apply_if_drifted(self, owner: Owner, desired: Object, live: Object | None) -> None:
        """Apply a child if it does not exist or has drifted.

        Raises `InvalidError` if the API does not accept it in any way, and other `ApiError`s.
        """
        kind, name = kind_of(desired), namespaced_name_of(desired)
        applied = self._applied.setdefault(owner.key, {})
        locked: list[str] = []
        if live is not None:
            if kind is DEPLOYMENT:
                locked = locked_additions(live, self._locked)
            if not locked and not has_drifted(live, desired):
                return
            if applied.get((kind, name[1])) == (digest(desired), _version(live)):
                return  # it was applied, and the API server has only normalised values
        answer = await self._write(owner, desired, live, is_whole=bool(locked))
        if live is None or _version(answer) != _version(live):
            verb = Verb.CREATED if live is None else Verb.APPLIED
            why = f"somebody has added what is locked: {', '.join(locked)}" if locked else ""
            log_change(owner, verb, kind, name[1], why or _reason(owner, live, desired))
        self._answers.put_child(kind, answer, owner.key)
        applied[kind, name[1]] = digest(desired), _version(answer)

    async def delete_surplus(
        self,
        owner: Owner,
        desired: Iterable[Object],
        others: Iterable[tuple[Kind, Object, str]] = (),
    ) -> None:
        """Delete children that are not desired, and `others`, each with its reason.

        Raises `ApiError`.
        """
        wanted = set(map(child_key, desired))
        for kind, live in tuple(self._cache.children(owner)):
            if (kind, namespaced_name_of(live)) not in wanted:
                await self._delete(owner, kind, live, "it is not needed")
        for kind, live, why in others:
            await self._delete(owner, kind, live, why)

    async def unexpose(self, agent: Agent, network_policy: Object) -> None:
        """Delete an Agent's routes; apply the policy that admits nobody. Raises `ApiError`.

        The rest of an Agent that may not be exposed as requested stays as it is.
        """
        for kind, live in tuple(self._cache.children(agent)):
            if kind in ROUTE_KINDS:
                await self._delete(agent, kind, live, "the Agent may not be exposed like that")
            elif (kind, namespaced_name_of(live)) == child_key(network_policy):
                await self.apply_if_drifted(agent, network_policy, live)

    async def _delete(self, owner: Owner, kind: Kind, live: Object, why: str) -> None:
        if "deletionTimestamp" in live["metadata"]:
            return
        await self._client.delete(kind, namespaced_name_of(live), live["metadata"]["uid"])
        log_change(owner, Verb.DELETED, kind, live["metadata"]["name"], why)
        if kind in ROUTE_KINDS:  # no watch tells of it
            self._cache.remove(kind, live)

    async def _write(
        self, owner: Owner, desired: Object, live: Object | None, *, is_whole: bool
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
            if not is_repairable or not is_controlled_by(live, owner):
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


def _reason(owner: Owner, live: Object | None, desired: Object) -> str:
    """Return the logged reason of a child's write."""
    if live is None:
        return "it was not there"
    noted = (live["metadata"].get("annotations") or {}).get(APPLIED_DIGEST)
    wanted = desired["metadata"]["annotations"][APPLIED_DIGEST]
    if noted == wanted:
        return "somebody has changed it"
    return f"what the {owner.kind.name} needs has changed"


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


def child_key(child: Object) -> ChildKey:
    """Return a child's kind and name."""
    return kind_of(child), namespaced_name_of(child)
