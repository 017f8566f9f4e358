"""Limits concurrent rollouts, and stops those of a shared change when it does harm.

An Agent keeps its place in a wave until its new pods are all there and have said whether they miss
anything. Rolling Agents are found by their Deployments (`desired.rollout`), so a restarted operator
continues where the former one stopped. Waiting Agents are requeued.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.deployment import RolloutSettings
from diptych_operator.desired.rollout import (
    Cause,
    RolloutMark,
    begins_rollout,
    changed_things,
    is_rolled_out,
    is_rolling,
    mark_of,
)
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, NamespacedName, Object, ObjectKey
from diptych_operator.status.condition import ROLLOUT_STOPPED, WAITS_FOR_OTHERS, Problem

_SHARED: Final = ""
_Lane: TypeAlias = str
"""`_SHARED` for changes of shared things, else the namespace whose Agents were edited."""
_USUAL: Final = {"RollingOut", "Paused"}
"""Reasons of Ready=False that a rollout has without anything being wrong."""


class RolloutThrottle:
    """At most `at_once` rollouts of shared changes, and `edits_at_once` of edits per namespace.

    0 means no limit.
    """

    def __init__(
        self, cache: ObjectCache, queue: WorkQueue, settings: RolloutSettings, metrics: Metrics
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._cache = cache
        self._queue = queue
        self._admitted: dict[NamespacedName, _Lane] = {}
        """Whose Deployment is being written: the cache does not know yet that it rolls."""
        self._held_back: dict[NamespacedName, _Lane] = {}

    def try_begin(self, agent: Agent, desired: Object, live: Object | None) -> Problem | None:
        """Reserve a place for a rollout, or return what it waits for; `end` must follow."""
        name = agent.namespaced_name
        cause = begins_rollout(desired, live)
        lane = _SHARED if cause is Cause.SHARED else agent.namespace
        limit = self._limit(lane)
        if cause is None or cause is Cause.START or not limit:
            self._held_back.pop(name, None)
            return None
        changed = changed_things(desired, live)
        problem = self._harm(changed) if lane == _SHARED else None
        others = {one: where for one, where in self._rolling().items() if one != name}
        if problem is None and Counter(others.values())[lane] >= limit:
            problem = _waits(lane, changed, limit)
        if problem:
            self._held_back.setdefault(name, lane)
            return problem
        self._held_back.pop(name, None)
        self._admitted[name] = lane
        return None

    def end(self, name: NamespacedName) -> None:
        """Mark a Deployment as written; queue waiting Agents if there is room."""
        self._admitted.pop(name, None)
        self._metrics.set_held_back(len(self._held_back))
        if not self._held_back or name in self._held_back:  # the latter has just found no room
            return
        rolling = Counter(self._rolling().values())
        for lane in set(self._held_back.values()):
            room = max(self._limit(lane) - rolling[lane], 0)
            waiting = [one for one, where in self._held_back.items() if where == lane]
            for next_one in waiting[:room]:
                self._queue.add(ObjectKey(AGENT, *next_one))

    def forget(self, name: NamespacedName) -> None:
        """Forget an Agent that is gone."""
        self._held_back.pop(name, None)
        self.end(name)

    def _limit(self, lane: _Lane) -> int:
        return self._settings.at_once if lane == _SHARED else self._settings.edits_at_once

    def _rolling(self) -> dict[NamespacedName, _Lane]:
        lanes = ((name, self._lane(name, found)) for name, found in self._cache.all(DEPLOYMENT))
        return {name: lane for name, lane in lanes if lane is not None} | self._admitted

    def _lane(self, name: NamespacedName, deployment: Object) -> _Lane | None:
        """Return where a Deployment's rollout is counted; None if it is over."""
        mark = mark_of(deployment)
        if mark is None or mark.cause is Cause.START:
            return None
        if mark.cause is Cause.EDIT:
            return name[0] if is_rolling(deployment) else None
        is_unasked = is_rolled_out(deployment) and not self._has_answered(name, mark)
        return _SHARED if is_rolling(deployment) or is_unasked else None

    def _has_answered(self, name: NamespacedName, mark: RolloutMark) -> bool:
        """Whether an Agent's pods were asked what they miss since all of them are new."""
        key = ObjectKey(AGENT, *name)
        return self._cache.asked.get(key) == mark.template or self._cache.owner(key) is None

    def _harm(self, changed: Mapping[str, str]) -> Problem | None:
        """Return why a change must not spread: what it did to an Agent that has it already."""
        for name, deployment in self._cache.all(DEPLOYMENT):
            mark = mark_of(deployment)
            if mark is None or mark.cause is not Cause.SHARED or not mark.was_healthy:
                continue
            things = dict(mark.shared.items() & changed.items())
            if things and (why := self._trouble(name, deployment, mark)):
                message = (
                    f"The rollout of {_named(things)} has stopped: since it came to Agent "
                    f"{'/'.join(name)}, that one {why}. It goes on when that Agent recovers or is "
                    f"edited, or when {_named(things)} change again."
                )
                return Problem(ROLLOUT_STOPPED, message)
        return None

    def _trouble(self, name: NamespacedName, deployment: Object, mark: RolloutMark) -> str:
        """Return what is wrong with an Agent since its last rollout; empty if nothing is known."""
        agent = self._cache.agent(name)
        conditions = {c["type"]: c for c in agent.status.get("conditions", ())} if agent else {}
        if is_rolled_out(deployment):
            missing = self._cache.missing_dependencies.get(ObjectKey(AGENT, *name))
            if missing and self._has_answered(name, mark):
                reason = conditions.get("Degraded", {}).get("reason", "Missing")
                return f"is Degraded ({reason})"
            return ""
        ready = conditions.get("Ready", {})
        if ready.get("status") == "False" and ready["reason"] not in _USUAL:
            return f"is not Ready ({ready['reason']})"
        return ""


def _waits(lane: _Lane, changed: Mapping[str, str], limit: int) -> Problem:
    if lane != _SHARED:
        message = (
            f"It was edited, and waits for the rollout of other edited Agents of namespace {lane} "
            f"({limit} at a time: the chart's value agents.rollout.editsAtOnce)."
        )
        return Problem(WAITS_FOR_OTHERS, message)
    message = (
        f"{_named(changed, start=True)} changed; this one waits for the rollout of others "
        f"({limit} at a time: the chart's value agents.rollout.atOnce)."
    )
    return Problem(WAITS_FOR_OTHERS, message)


def _named(things: Mapping[str, str], *, start: bool = False) -> str:
    text = " and ".join(sorted(things)) or "a shared object"
    return text[0].upper() + text[1:] if start else text
