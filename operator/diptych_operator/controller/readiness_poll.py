"""Asks the pods now and then what no watch tells: what do they miss?

What a pod misses (a tool server, an agent, a key) stands in its `/ready`. A pod is asked soon after
it has changed, or an Agent or Service that its agent refers to; one that misses something is asked
more often, so that `Degraded` does not outlive its cause for long.

Not here: what is done about the answers (`reconcile`).
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator

import aiohttp
import orjson

from diptych_operator.controller.poll_schedule import Turns
from diptych_operator.controller.store import World
from diptych_operator.controller.work_queue import Due
from diptych_operator.resources.kinds import PORT, Name, Object
from diptych_operator.status.conditions import Shortage
from diptych_operator.status.pods import pod_address

PERIOD = 20.0
"""Seconds between two visits to an agent, while there are few."""
SOON = 2.0
"""Seconds after which an agent is visited of which something has changed."""
DEGRADED_PERIOD = 5.0
"""Seconds between two visits to an agent that misses something, while there are few."""
MAX_PER_SECOND = 10.0
"""How many agents are visited in a second; where there are more, the periods are longer."""
TICK = 1.0

_AT_ONCE = 16
_TIMEOUT = aiohttp.ClientTimeout(total=3)
_MAX_PODS = 5
_MAX_ANSWER = 64 * 1024
_MAX_WORDS = 200
_log = logging.getLogger(__name__)


class Visits:
    """Visits one agent after another; what is news makes it due."""

    def __init__(self, world: World, due: Due) -> None:
        self._world = world
        self._due = due
        self._turns = Turns()

    async def run(self) -> None:
        """Visit all agents, for ever."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            while True:
                for name in self._world.take_news():
                    self._turns.soon(name, SOON)
                names = iter(self._turns.take(self._world.agents(), self._period()))
                await asyncio.gather(*(self._take(names, session) for _ in range(_AT_ONCE)))
                await asyncio.sleep(TICK)

    async def visit(self, name: Name, session: aiohttp.ClientSession) -> None:
        """Visit one agent."""
        agent = self._world.agent(name)
        if agent is None or agent.is_going:
            return
        found = await self._ask_pods(name, session)
        if found:
            count = sum(map(bool, self._world.shortages.values()))
            self._turns.soon(name, max(DEGRADED_PERIOD, count / MAX_PER_SECOND))
        is_news = name not in self._world.shortages or found != self._world.shortages[name]
        self._world.shortages[name] = found
        if is_news:
            self._due.add(name)

    async def _take(self, names: Iterator[Name], session: aiohttp.ClientSession) -> None:
        for name in names:
            await self.visit(name, session)

    def _period(self) -> float:
        return max(PERIOD, sum(1 for _ in self._world.agents()) / MAX_PER_SECOND)

    async def _ask_pods(
        self, name: Name, session: aiohttp.ClientSession
    ) -> tuple[Shortage, ...] | None:
        """Give what the pods miss together; None if none of them answers."""
        addresses = filter(None, map(pod_address, self._world.pods(name)))
        asked = [_ask(session, address) for address in list(addresses)[:_MAX_PODS]]
        answers = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        if not answers:
            return None
        return tuple(dict.fromkeys(shortage for answer in answers for shortage in answer))


async def _ask(session: aiohttp.ClientSession, address: str) -> list[Shortage] | None:
    """Ask a pod what it misses; None if it does not say."""
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{PORT}/ready", allow_redirects=False) as response:
            body = await response.content.read(_MAX_ANSWER)
        return list(_shortages(orjson.loads(body).get("missing", ())))
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    except (AttributeError, KeyError, TypeError, ValueError):  # some other server's answer
        return None


def _shortages(missing: Iterable[Object]) -> Iterable[Shortage]:
    for one in missing:
        yield Shortage(_words(one["kind"]), _words(one["name"]), _words(one["reason"]))


def _words(text: object) -> str:
    return " ".join(str(text).split())[:_MAX_WORDS]
