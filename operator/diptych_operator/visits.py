"""Asks now and then what no watch tells: is an agent's config there, and what do its pods miss?

The operator has no right to read ConfigMaps. But to make one that is there already is refused and
changes nothing; so making it again heals its loss. What a pod misses (a tool server, an agent, a
key) stands in its `/ready`.

Not here: what is done about the answers (`reconcile`).
"""

import asyncio
import logging
import time
from collections.abc import Iterable

import aiohttp
import orjson

from diptych_operator.children import TooLargeError, config_of
from diptych_operator.cluster import Cluster
from diptych_operator.deployment import config_in
from diptych_operator.due import Due
from diptych_operator.errors import ClusterError
from diptych_operator.kinds import PORT, Name, Object
from diptych_operator.pods import pod_address
from diptych_operator.spec import Agent
from diptych_operator.status import Shortage
from diptych_operator.world import World

PERIOD = 20.0
"""Seconds between two visits to an agent, while there are few."""
SOON = 2.0
MAX_PER_SECOND = 10.0
"""How many agents are visited in a second; where there are more, the period is longer."""

_TIMEOUT = aiohttp.ClientTimeout(total=3)
_MAX_PODS = 5
_MAX_ANSWER = 64 * 1024
_MAX_WORDS = 200
_log = logging.getLogger(__name__)


class Visits:
    """Visits one agent after another; what is news makes it due."""

    def __init__(self, cluster: Cluster, world: World, due: Due) -> None:
        self._cluster = cluster
        self._world = world
        self._due = due
        self._next: dict[Name, float] = {}

    def soon(self, name: Name) -> None:
        """Visit an agent before its turn, as one of its pods has changed."""
        at = time.monotonic() + SOON
        self._next[name] = min(self._next.get(name, at), at)

    async def run(self) -> None:
        """Visit all agents, for ever."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                await asyncio.gather(*(self.visit(name, session) for name in self._in_turn()))
                await asyncio.sleep(1)

    async def visit(self, name: Name, session: aiohttp.ClientSession) -> None:
        """Visit one agent."""
        agent = self._world.agent(name)
        if agent is None or agent.is_going:
            self._next.pop(name, None)
            return
        await self._restore_config(agent)
        found = await self._ask_pods(name, session)
        if found != self._world.shortages.get(name):
            if found is None:
                self._world.shortages.pop(name)
            else:
                self._world.shortages[name] = found
            self._due.add(name)

    def _in_turn(self) -> list[Name]:
        """Name the agents whose turn it is, and say when it will be again."""
        now = time.monotonic()
        names = list(self._world.agents())
        period = max(PERIOD, len(names) / MAX_PER_SECOND)
        for index, name in enumerate(names):
            if name not in self._next:  # spread them evenly from the start
                self._next[name] = now + period * (index + 1) / len(names)
        for name in self._next.keys() - set(names):
            del self._next[name]
        ripe = [name for name in names if self._next[name] <= now][: int(MAX_PER_SECOND)]
        self._next |= dict.fromkeys(ripe, now + period)
        return ripe

    async def _restore_config(self, agent: Agent) -> None:
        """Make the config that the pods run with again, in case it was deleted."""
        around = self._world.surroundings(agent)
        try:
            config = config_of(agent, around)
            if config_in(around.deployment) != config["metadata"]["name"]:
                return  # a rollout, or a revision that was refused: that is for `reconcile`
            if await self._cluster.create(config):
                _log.warning("%s/%s: its ConfigMap was deleted; made again", *agent.full_name)
        except (ClusterError, TooLargeError) as error:
            _log.debug("%s/%s: cannot look after its config: %s", *agent.full_name, error)

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
