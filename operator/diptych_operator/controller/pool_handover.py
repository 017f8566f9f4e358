"""Hands the documents of pools to their pods over HTTP, and reads the pods' reports.

The kubelet takes up to 90 s to bring a changed ConfigMap into a pod. A pod also reads its
ConfigMaps, so a document that is not handed over arrives late, and is not lost.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import orjson

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.readiness_poll import (
    StatusTokens,
    merged,
    missing_dependencies,
    scheduled_ends,
)
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.pool_documents import Document
from diptych_operator.desired.rollout import has_ended
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import AGENT, AGENT_POOL, PORT, Object, ObjectKey
from diptych_operator.status.pods import pod_address
from diptych_operator.status.pooled import STATES, PoolEntry, Reports

PERIOD = 5.0
"""Seconds between two looks at a pool's pods."""
QUICK_PERIOD = 0.5
"""While something changes."""

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_AT_ONCE = 8  # requests to one pod
_MAX_BODY = 4 * 1024 * 1024
_MAX_REASON = 1000
_log = logging.getLogger(__name__)
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(slots=True)
class PoolRecord:
    """The documents that a pool's pods are to serve, and the pods' reports.

    `documents` is None until the pool was reconciled. `refused` says why it does not take an
    Agent.
    """

    documents: Mapping[str, Document] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    reports: Reports = field(default_factory=dict)

    def is_settled(self, pods: Iterable[Object]) -> bool:
        """Whether no pod serves a former document, or an Agent that is not in the pool."""
        documents = self.documents or {}
        wanted = {name: document.digest for name, document in documents.items()}
        running = [pod["metadata"]["name"] for pod in pods if not has_ended(pod)]
        found = [self.reports.get(pod) for pod in running]
        return self.documents is not None and all(
            report is not None
            and {name: entry.digest for name, entry in report.items()} == wanted
            and all(entry.state in {"ready", "failed"} for entry in report.values())
            for report in found
        )


class PoolHandover:
    """Brings the pods of all pools to the newest documents; a changed report queues its owners."""

    def __init__(self, cache: ObjectCache, queue: WorkQueue, tokens: StatusTokens) -> None:
        self._cache = cache
        self._queue = queue
        self._tokens = tokens
        self._records: dict[ObjectKey, PoolRecord] = defaultdict(PoolRecord)
        self._news = asyncio.Event()

    def record(self, pool: ObjectKey) -> PoolRecord:
        return self._records[pool]

    def hand_over(self, pool: ObjectKey, documents: Mapping[str, Document]) -> None:
        """Have a pool's pods serve these documents, and no other Agent."""
        if self._records[pool].documents != documents:
            self._records[pool].documents = documents
            self.look()

    def look(self) -> None:
        """Look at all pools soon."""
        self._news.set()

    def forget(self, pool: ObjectKey) -> None:
        self._records.pop(pool, None)

    async def run(self) -> None:
        """Look at all pools, forever."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            while True:
                self._news.clear()
                pools = [ObjectKey(AGENT_POOL, *name) for name, _ in self._cache.all(AGENT_POOL)]
                settled = await asyncio.gather(*(self._visit(pool, session) for pool in pools))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD if all(settled) else QUICK_PERIOD):
                        await self._news.wait()

    async def _visit(self, pool: ObjectKey, session: aiohttp.ClientSession) -> bool:
        """Bring the pods of one pool up to date; return whether nothing is left to do."""
        addresses = {
            pod["metadata"]["name"]: address
            for pod in self._cache.pods(pool)
            if (address := pod_address(pod))
        }
        token = (
            await self._tokens.token(AgentPool.audience_of(pool.namespaced_name))
            if addresses
            else None
        )
        record = self._records[pool]
        documents = record.documents
        pods = [_Pod(session, address, token) for address in addresses.values()]
        found = await asyncio.gather(*(pod.update(documents) for pod in pods))
        reports = {
            pod: entries
            for pod, entries in zip(addresses, found, strict=True)
            if entries is not None
        }
        former, record.reports = record.reports, reports
        if reports != former:
            self._queue.add(pool)
            for agent in _changed(former, reports):
                self._queue.add(ObjectKey(AGENT, pool.namespace, agent))
        for agent in documents or ():
            self._note(ObjectKey(AGENT, pool.namespace, agent), reports)
        entries = [entry for report in reports.values() for entry in report.values()]
        return all(entry.state in {"ready", "failed"} for entry in entries)

    def _note(self, key: ObjectKey, reports: Reports) -> None:
        """Cache what the pods report of an Agent, as `ReadinessPoll` does for others."""
        agent = self._cache.agent(key.namespaced_name)
        if agent and not self._cache.has_own_pods(agent):
            found = {pod: report[key.name] for pod, report in reports.items() if key.name in report}
            missing = merged({pod: entry.missing for pod, entry in found.items()})
            self._cache.missing_dependencies[key] = missing if found else None
            ends = scheduled_ends({pod: {"scheduled": e.scheduled} for pod, e in found.items()})
            known = self._cache.scheduled_ends.get(key, {})
            self._cache.scheduled_ends[key] = {**known, **ends}


def _changed(former: Reports, reports: Reports) -> set[str]:
    """Name the Agents of which some pod reports something else."""
    pods = former.keys() | reports.keys()
    return {
        agent for pod in pods for agent in _differing(former.get(pod, {}), reports.get(pod, {}))
    }


def _differing(one: Mapping[str, PoolEntry], other: Mapping[str, PoolEntry]) -> Iterable[str]:
    return (name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


class _Pod:
    """A pool's pod, asked by its management routes."""

    def __init__(self, session: aiohttp.ClientSession, address: str, token: str | None) -> None:
        host = f"[{address}]" if ":" in address else address
        self._url = f"http://{host}:{PORT}/pool/agents"
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def update(self, documents: Mapping[str, Document] | None) -> dict[str, PoolEntry] | None:
        """Hand over the documents that the pod lacks, and return its report; None without one.

        None as `documents`: they are not known yet, and nothing is changed.
        """
        try:
            entries = _entries(await self._request("GET", ""))
            if documents is not None:
                await asyncio.gather(
                    *(self._put(document, entries) for document in documents.values()),
                    *(self._delete(name, entries) for name in entries.keys() - documents.keys()),
                )
        except _NO_ANSWER as error:
            _log.debug("%s: no answer: %r", self._url, error)
            return None
        except (KeyError, TypeError, ValueError) as error:  # the answer of some other server
            _log.warning("%s: an answer of no use: %s", self._url, error)
            return None
        return entries

    async def _put(self, document: Document, entries: dict[str, PoolEntry]) -> None:
        entry = entries.get(document.name)
        if entry and (entry.digest, entry.state != "draining") == (document.digest, True):
            return
        answer = await self._request("PUT", f"/{document.name}", document.text)
        if "name" in answer:
            entries[document.name] = _entry(answer)
        else:
            reason = str((answer.get("error") or {}).get("message") or answer)[:_MAX_REASON]
            entries[document.name] = PoolEntry(document.digest, "failed", reason)

    async def _delete(self, name: str, entries: dict[str, PoolEntry]) -> None:
        if entries[name].state != "draining":
            answer = await self._request("DELETE", f"/{name}")
            if "name" in answer:
                entries[name] = _entry(answer)

    async def _request(self, method: str, path: str, body: str | None = None) -> Any:  # noqa: ANN401 - JSON
        async with (
            self._places,
            self._session.request(
                method,
                self._url + path,
                data=body.encode() if body is not None else None,
                headers=self._headers,
                allow_redirects=False,
            ) as response,
        ):
            if response.status in {401, 403}:
                raise aiohttp.ClientError(f"{response.status}: the operator's token is refused")
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > _MAX_BODY:
                    raise ValueError("it is too long")
        return orjson.loads(content)


def _entries(listed: object) -> dict[str, PoolEntry]:
    if not isinstance(listed, list):
        raise TypeError("it is no list")
    return {str(one["name"]): _entry(one) for one in listed}


def _entry(answer: Mapping[str, Any]) -> PoolEntry:
    state = answer["state"]
    if state not in STATES:
        raise ValueError(f"no such state: {state!r}")
    reason = " ".join(str(answer.get("reason") or "").split())[:_MAX_REASON]
    missing = tuple(missing_dependencies(answer.get("missing") or ()))
    scheduled = tuple(scheduled_ends({"": dict(answer)}).values())
    return PoolEntry(str(answer["digest"]), cast("Any", state), reason, missing, scheduled)
