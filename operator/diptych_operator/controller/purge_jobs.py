"""The Jobs that delete sessions: made with their Agents, started when these are gone.

Level-based as all else: a Job whose Agent is not there any more is started, whenever that is seen,
also by an operator that was away when the Agent was deleted.
"""

from collections.abc import Sequence

from diptych_operator.controller.apply import Answers, Verb, log_change
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.desired.purge import AGENT_UID, SESSIONS, purge_policy, started
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import NotFoundError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    AGENT,
    JOB,
    NamespacedName,
    Object,
    ObjectKey,
    namespaced_name_of,
)


class PurgeJobs:
    """The purge Jobs of all Agents."""

    def __init__(self, client: KubernetesClient, cache: ObjectCache, answers: Answers) -> None:
        self._client = client
        self._cache = cache
        self._answers = answers

    async def ensure(self, agent: Agent, desired: Object | None) -> None:
        """Ensure that an Agent's only purge Job exists and is suspended. Raises `ApiError`."""
        is_there = False
        for job in self._cache.purge_jobs(agent.namespaced_name):
            if _annotation(job, AGENT_UID) != agent.uid or "deletionTimestamp" in job["metadata"]:
                continue
            name = namespaced_name_of(job)
            if desired is not None and name == namespaced_name_of(desired):
                is_there = True
                continue
            await self._client.delete(JOB, name, job["metadata"]["uid"])
            log_change(agent, Verb.DELETED, JOB, name[1], "it would purge other sessions")
        if desired is None or is_there:
            return
        if live := await self._client.create(desired):
            self._answers.put_child(JOB, live, agent.key)
            why = "it purges the Agent's sessions when that is deleted"
            log_change(agent, Verb.CREATED, JOB, live["metadata"]["name"], why)

    async def start(self, name: NamespacedName, orphaned: Sequence[Object]) -> None:
        """Start the Jobs of deleted Agents of this name. Raises `ApiError`."""
        for job in orphaned:
            try:
                await self._client.create(purge_policy(job))
                live = await self._client.apply(started(job), job["metadata"]["uid"])
            except NotFoundError:
                continue  # somebody has deleted it
            key = ObjectKey(AGENT, *name)
            self._answers.put_child(JOB, live, key)
            why = "its Agent is gone, and with it go its sessions"
            log_change(key, Verb.APPLIED, JOB, live["metadata"]["name"], why)

    def orphaned(self, name: NamespacedName) -> list[Object]:
        """Return suspended Jobs of deleted Agents whose sessions nobody has adopted."""
        agent = self._cache.agent(name)
        return [
            job
            for job in self._cache.purge_jobs(name)
            if job["spec"].get("suspend")
            and "deletionTimestamp" not in job["metadata"]
            and (
                agent is None
                or (
                    _annotation(job, AGENT_UID) != agent.uid
                    and _annotation(job, SESSIONS) != agent.sessions_key
                )
            )
        ]


def _annotation(job: Object, name: str) -> str:
    return str((job["metadata"].get("annotations") or {}).get(name, ""))
