"""Limits concurrent rollouts after a platform change.

Rolling Agents are found by their Deployments (`desired.rollout_mark`), so a restarted operator
continues where the former one stopped. Waiting Agents are requeued.
"""

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.rollout import begins_platform_rollout, is_in_platform_rollout
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import DEPLOYMENT, NamespacedName, Object


class RolloutThrottle:
    """At most `at_once` concurrent platform rollouts; 0 means no limit."""

    def __init__(
        self, cache: ObjectCache, queue: WorkQueue, at_once: int, metrics: Metrics
    ) -> None:
        self.at_once = at_once
        self._metrics = metrics
        self._cache = cache
        self._queue = queue
        self._admitted: set[NamespacedName] = set()
        """Whose Deployment is being written: the cache does not know yet that it rolls."""
        self._held_back: dict[NamespacedName, None] = {}

    def try_begin(self, agent: Agent, desired: Object, live: Object | None) -> bool:
        """Reserve a place for a rollout if one is free; `end` must follow."""
        name = agent.namespaced_name
        if not (self.at_once and begins_platform_rollout(desired, live)):
            self._held_back.pop(name, None)
            return True
        if len(self._rolling() - {name}) >= self.at_once:
            self._held_back.setdefault(name)
            return False
        self._held_back.pop(name, None)
        self._admitted.add(name)
        return True

    def end(self, name: NamespacedName) -> None:
        """Mark a Deployment as written; queue waiting Agents if there is room."""
        self._admitted.discard(name)
        self._metrics.set_held_back(len(self._held_back))
        if self._held_back and name not in self._held_back:  # one that waits has just found no room
            room = self.at_once - len(self._rolling())
            for next_one in list(self._held_back)[: max(room, 0)]:
                self._queue.add(next_one)

    def forget(self, name: NamespacedName) -> None:
        """Forget an Agent that is gone."""
        self._held_back.pop(name, None)
        self.end(name)

    def _rolling(self) -> set[NamespacedName]:
        rolling = {
            name
            for name, deployment in self._cache.all(DEPLOYMENT)
            if is_in_platform_rollout(deployment)
        }
        return rolling | self._admitted
