"""Applies one child of an Agent, whatever others have made of the live object.

Server-side apply merges with the fields of other field managers. The result can be invalid though
the manifest is fine: say, a port of the same name and another number next to ours. So an object
that the Agent controls is overwritten, once, if applying it is refused. If that is refused too,
the manifest is at fault, and nothing has changed.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from diptych_operator.controller.answers import Answers
from diptych_operator.controller.changes import Verb, log_change
from diptych_operator.desired.additions import locked_additions
from diptych_operator.desired.drift import digest, has_drifted
from diptych_operator.desired.locked_fields import LockedField
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import InvalidError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    APPLIED_DIGEST,
    DEPLOYMENT,
    OVERWRITE_MANAGER,
    Kind,
    NamespacedName,
    Object,
    kind_of,
    namespaced_name_of,
)
from diptych_operator.resources.ownership import is_controlled_by

_log = logging.getLogger(__name__)


class Applier:
    """Applies children that have drifted, and remembers what the API made of them."""

    def __init__(
        self, client: KubernetesClient, answers: Answers, locked: Sequence[LockedField] = ()
    ) -> None:
        """Fields of the pod template that are `locked` are undone where others added them."""
        self._client = client
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

    async def _write(
        self, agent: Agent, desired: Object, live: Object | None, *, is_whole: bool
    ) -> Object:
        """Write a child; `is_whole` removes what others have added, too."""
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
        """Overwrite an object, or recreate it where it differs in what can never be changed."""
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
    """Say why a child is written."""
    if live is None:
        return "it was not there"
    noted = (live["metadata"].get("annotations") or {}).get(APPLIED_DIGEST)
    wanted = desired["metadata"]["annotations"][APPLIED_DIGEST]
    return "what the Agent needs has changed" if noted != wanted else "somebody has changed it"


def _version(content: Object) -> str:
    version: str = content["metadata"].get("resourceVersion", "")
    return version


def _was_overwritten(live: Object) -> bool:
    """Say whether `OVERWRITE_MANAGER` may own a field, which applying would then not remove."""
    managers = live["metadata"].get("managedFields", ())
    return any(entry.get("manager") == OVERWRITE_MANAGER for entry in managers)


def _must_be_recreated(live: Object, desired: Object) -> bool:
    """Whether a Deployment's selector or an immutable ConfigMap's data differ."""
    if kind_of(desired) is DEPLOYMENT:
        return bool(live["spec"].get("selector") != desired["spec"]["selector"])
    return bool(live.get("immutable") and live.get("data") != desired.get("data"))
