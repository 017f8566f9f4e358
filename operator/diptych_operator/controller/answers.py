"""Answers of the API to own writes: into the cache, and the Agents that they affect into the queue.

An answer may be here before the watch event, which then is no news. So what others wait for, and
what somebody else has changed just before the write, must be seen in the answer.

What the writer itself has changed does not queue it: its reconcile has just done that. Else words
that differ at each write, such as those of a webhook that denies, would have it reconciled forever.
"""

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.resources.agent import agent_of
from diptych_operator.resources.kinds import AGENT, Kind, NamespacedName, Object, namespaced_name_of


class Answers:
    """Takes the answers to what is written for Agents."""

    def __init__(self, cache: ObjectCache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue

    def put_agent(self, answer: Object) -> None:
        """Take the answer to the write of a status; a status alone affects nobody."""
        former = self._cache.find(AGENT, namespaced_name_of(answer))
        affected = self._cache.put(AGENT, answer)
        if former is None or _is_edited(former, answer):
            self._queue_all(affected)

    def put_child(self, kind: Kind, answer: Object, writer: NamespacedName) -> None:
        """Take the answer to the write of a child; its `writer` is queued if its status is news."""
        former = self._cache.find(kind, namespaced_name_of(answer))
        affected = self._cache.put(kind, answer)
        if former is None or former.get("status") == answer.get("status"):
            affected -= {writer}
        self._queue_all(affected)

    def _queue_all(self, names: set[NamespacedName]) -> None:
        for name in names:
            self._queue.add(name)


def _is_edited(former: Object, answer: Object) -> bool:
    """Say whether an Agent is another one than before, apart from its status."""
    before, after = agent_of(former), agent_of(answer)
    return (before.uid, before.generation, before.is_terminating) != (
        after.uid,
        after.generation,
        after.is_terminating,
    )
