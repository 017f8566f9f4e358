"""Asks pods what no watch tells: which of their dependencies are missing.

A pod's `/ready` lists missing dependencies: a tool server, an agent, a key. An Agent's pods are
polled soon after they change, or an Agent or Service that the Agent refers to. An Agent that misses
something is polled more often, so that `Degraded` does not outlive its cause for long.

Not here: the condition that follows (`status.conditions`).
"""

import asyncio
from collections.abc import Iterable, Iterator

import aiohttp
import orjson

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.poll_schedule import PollSchedule
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.resources.kinds import PORT, NamespacedName, Object
from diptych_operator.status.conditions import MissingDependency
from diptych_operator.status.pods import pod_address

PERIOD = 10.0
"""Seconds between two polls of an Agent, if there are few Agents."""
CHANGE_DELAY = 2.0
"""Seconds from a change to the poll that it causes."""
DEGRADED_PERIOD = 5.0
"""Seconds between two polls of an Agent that misses something, if there are few of those."""
MAX_PER_SECOND = 10.0
"""Agents polled per second; with more Agents the periods get longer."""
TICK = 1.0

_CONCURRENCY = 16
_TIMEOUT = aiohttp.ClientTimeout(total=3)
_MAX_PODS = 5
_MAX_BODY = 64 * 1024
_MAX_TEXT = 200


class ReadinessPoll:
    """Polls the pods of all Agents; a changed answer queues the Agent."""

    def __init__(self, cache: ObjectCache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue
        self._schedule = PollSchedule()

    async def run(self) -> None:
        """Poll all Agents, forever."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            while True:
                for name in self._cache.pop_readiness_changes():
                    self._schedule.expedite(name, CHANGE_DELAY)
                names = iter(self._schedule.pop_due(self._cache.agent_names(), self._period()))
                await asyncio.gather(*(self._poll_all(names, session) for _ in range(_CONCURRENCY)))
                await asyncio.sleep(TICK)

    async def _poll_all(
        self, names: Iterator[NamespacedName], session: aiohttp.ClientSession
    ) -> None:
        for name in names:
            await self._poll(name, session)

    async def _poll(self, name: NamespacedName, session: aiohttp.ClientSession) -> None:
        agent = self._cache.agent(name)
        if agent is None or agent.is_terminating:
            return
        missing = await self._ask_pods(name, session)
        known = self._cache.missing_dependencies
        if missing:
            degraded = sum(map(bool, known.values()))
            self._schedule.expedite(name, max(DEGRADED_PERIOD, degraded / MAX_PER_SECOND))
        has_changed = name not in known or missing != known[name]
        known[name] = missing
        if has_changed:
            self._queue.add(name)

    def _period(self) -> float:
        return max(PERIOD, sum(1 for _ in self._cache.agent_names()) / MAX_PER_SECOND)

    async def _ask_pods(
        self, name: NamespacedName, session: aiohttp.ClientSession
    ) -> tuple[MissingDependency, ...] | None:
        """Give what any pod misses, each once; None if no pod answers."""
        addresses = filter(None, map(pod_address, self._cache.pods(name)))
        requests = [_ask_pod(session, address) for address in list(addresses)[:_MAX_PODS]]
        answers = [answer for answer in await asyncio.gather(*requests) if answer is not None]
        if not answers:
            return None
        return tuple(dict.fromkeys(missing for answer in answers for missing in answer))


async def _ask_pod(session: aiohttp.ClientSession, address: str) -> list[MissingDependency] | None:
    """Ask one pod what it misses; None without a usable answer."""
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{PORT}/ready", allow_redirects=False) as response:
            body = await response.content.read(_MAX_BODY)
        return list(_missing_dependencies(orjson.loads(body).get("missing", ())))
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    except (AttributeError, KeyError, TypeError, ValueError):  # the answer of some other server
        return None


def _missing_dependencies(entries: Iterable[Object]) -> Iterator[MissingDependency]:
    for entry in entries:
        yield MissingDependency(_text(entry["kind"]), _text(entry["name"]), _text(entry["reason"]))


def _text(value: object) -> str:
    return " ".join(str(value).split())[:_MAX_TEXT]
