"""When each Agent is polled next: once in a period, spread evenly over it, sooner if asked for.

Tokens with which the operator asks pods how they are: of its own ServiceAccount, for one Agent.

Each is for the Agent alone that it is sent to, so that no pod can use it at another one.

Polls for facts that no watch shows: missing dependencies, and why a pod does not start.

A pod's `/ready` lists missing dependencies, to whoever proves that it is the operator or may read
all (`status_tokens`): a tool server, an agent, a key, its model, its store. An Agent's pods are
polled soon after they change, or an Agent or Service that the Agent refers to. An Agent that misses
something is polled more often, so that `Degraded` does not outlive its cause for long.

Why a pod does not start, say for want of a volume, stands in the kubelet's Events alone.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime

import aiohttp
import orjson

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.access import audience
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import PORT, NamespacedName, Object
from diptych_operator.status.conditions import MissingDependency
from diptych_operator.status.pods import is_held_up, pod_address, start_problem

MAX_PER_SECOND = 10.0
"""Agents polled per second by one schedule; with more Agents the periods get longer."""

SCAN_SECONDS = 1.0
"""Seconds between two looks at all times: a thousand of them cost more than what is due."""


class PollSchedule:
    """Times by Agent. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[NamespacedName, float] = {}
        self._next_scan = 0.0

    def expedite(self, name: NamespacedName, seconds: float) -> None:
        """Poll an Agent in so many seconds, unless its next poll is sooner."""
        at = self._clock() + seconds
        self._next[name] = min(self._next.get(name, at), at)
        self._next_scan = min(self._next_scan, at)

    def pop_due(self, names: Iterable[NamespacedName], period: float) -> list[NamespacedName]:
        """Give those of `names` whose time has come; their next time is a period later.

        `names` are all Agents: any other one is forgotten. The period gets longer if more of them
        than `MAX_PER_SECOND` would be due. Their times are looked at once in `SCAN_SECONDS`, or
        when one is expedited to a time before that.
        """
        now = self._clock()
        if now < self._next_scan:
            return []
        self._next_scan = now + SCAN_SECONDS
        known = list(names)
        period = max(period, len(known) / MAX_PER_SECOND)
        for index in [index for index, name in enumerate(known) if name not in self._next]:
            self._next[known[index]] = now + period * (index + 1) / len(known)
        if len(self._next) > len(known):
            for name in self._next.keys() - set(known):
                del self._next[name]
        due = [name for name in known if self._next[name] <= now]
        self._next |= dict.fromkeys(due, now + period)
        return due


LIFETIME = 3600
"""Seconds for which a token is asked; the API may give another time."""
RENEWED_AFTER = 1800.0
"""Seconds after which a token is replaced: well before it expires, whatever the API gives."""
RETRY_SECONDS = 60.0

_log = logging.getLogger(__name__)


class StatusTokens:
    """The tokens by Agent. `account` is the operator's own; without one there are no tokens."""

    def __init__(
        self,
        client: KubernetesClient,
        account: NamespacedName | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._account = account
        self._clock = clock
        self._tokens: dict[NamespacedName, tuple[str | None, float]] = {}
        """The token, None if the API gave none, and the time until which that holds."""

    async def token(self, name: NamespacedName) -> str | None:
        """Give a token for an Agent; None if the API gives none now."""
        if self._account is None:
            return None
        token, until = self._tokens.get(name, (None, 0.0))
        now = self._clock()
        if now >= until:
            token = await self._request(self._account, name) or token
            self._tokens[name] = token, now + (RENEWED_AFTER if token else RETRY_SECONDS)
        return token

    def keep(self, names: set[NamespacedName]) -> None:
        """Forget the tokens of all other Agents."""
        for name in self._tokens.keys() - names:
            del self._tokens[name]

    async def _request(self, account: NamespacedName, name: NamespacedName) -> str | None:
        try:
            return await self._client.create_token(account, audience(name), LIFETIME)
        except ApiError as error:
            _log.warning("%s/%s: no token to ask its pods with: %s", *name, error)
            return None


PERIOD = 5.0
"""Seconds between two polls of an Agent, if there are few Agents."""
CHANGE_DELAY = 2.0
"""Seconds from a change to the poll that it causes."""
DEGRADED_PERIOD = 5.0
"""Seconds between two polls of an Agent that misses something, if there are few of those."""
TICK = 1.0

_CONCURRENCY = 16
_TIMEOUT = aiohttp.ClientTimeout(total=3)
_MAX_PODS = 5
_MAX_BODY = 64 * 1024
_MAX_TEXT = 300
_REFUSED = re.compile(r'error_description="([^"]*)"')
_CLOCK_SECONDS = 60.0  # by which two clocks may differ, as of tokens


class ReadinessPoll:
    """Polls the pods of all Agents; a changed answer queues the Agent."""

    def __init__(
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        tokens: StatusTokens,
    ) -> None:
        self._client = client
        self._cache = cache
        self._queue = queue
        self._tokens = tokens
        self._schedule = PollSchedule()

    async def run(self) -> None:
        """Poll all Agents, forever."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            while True:
                for name in self._cache.pop_readiness_changes():
                    self._schedule.expedite(name, CHANGE_DELAY)
                self._tokens.keep(set(self._cache.agent_names()))
                names = iter(self._schedule.pop_due(self._cache.agent_names(), PERIOD))
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
        if await self._ask_for_events(name) or has_changed:
            self._queue.add(name)

    async def _ask_for_events(self, name: NamespacedName) -> bool:
        """Ask why a pod does not start, if one does not; say whether the answer is news.

        Until it is there, the former one stands: an Agent may be reconciled meanwhile.
        """
        problems, found = self._cache.start_problems, None
        former = problems.get(name)
        for pod in self._cache.pods(name):
            if not is_held_up(pod, time.time()):
                continue
            try:
                warnings = await self._client.warnings(name[0], pod["metadata"]["uid"])
            except ApiError as error:  # tried again at the next poll
                _log.debug("%s/%s: its pod's Events cannot be listed: %s", *name, error)
                warnings = []
            if found := start_problem(pod, warnings) or former:
                break
        if found is None:
            problems.pop(name, None)
        else:
            problems[name] = found
        return found != former

    async def _ask_pods(
        self, name: NamespacedName, session: aiohttp.ClientSession
    ) -> tuple[MissingDependency, ...] | None:
        """Give what any pod misses, each once; None if no pod answers."""
        pods = {pod["metadata"]["name"]: pod_address(pod) for pod in self._cache.pods(name)}
        asked = [(pod, address) for pod, address in pods.items() if address][:_MAX_PODS]
        token = await self._tokens.token(name) if asked else None
        found = await asyncio.gather(
            *(_ask_pod(session, pod, address, token) for pod, address in asked)
        )
        answers = {
            pod: answer for (pod, _), answer in zip(asked, found, strict=True) if answer is not None
        }
        return _merged(answers) if answers else None


def _merged(answers: Mapping[str, Sequence[MissingDependency]]) -> tuple[MissingDependency, ...]:
    """Give what the pods miss, each once; what not all of them miss names those that do."""
    pods: dict[MissingDependency, list[str]] = {}
    for pod, missing in answers.items():
        for one in dict.fromkeys(missing):
            pods.setdefault(one, []).append(pod)
    return tuple(
        one
        if len(where) == len(answers) or one.kind == "pod"
        else replace(one, reason=f"{one.reason} (pod {', '.join(sorted(where))})")
        for one, where in pods.items()
    )


async def _ask_pod(
    session: aiohttp.ClientSession, pod: str, address: str, token: str | None
) -> list[MissingDependency] | None:
    """Ask one pod what it misses; None without a usable answer."""
    host = f"[{address}]" if ":" in address else address
    url, headers = f"http://{host}:{PORT}/ready", {"Authorization": f"Bearer {token}"}
    try:
        async with session.get(
            url, headers=headers if token else None, allow_redirects=False
        ) as response:
            body = await response.content.read(_MAX_BODY)
        if refused := _refusal(response.headers):
            return [MissingDependency("pod", pod, refused)]
        return list(_missing_dependencies(orjson.loads(body)["missing"]))
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    except (AttributeError, KeyError, TypeError, ValueError):  # the answer of some other server
        return None


def _refusal(headers: Mapping[str, str]) -> str:
    """Return why a pod refuses the operator's token; empty if it does not.

    A clock is the nearest cause that can be seen from here: each answer has the pod's own time.
    """
    why = _REFUSED.search(headers.get("WWW-Authenticate", ""))
    if why is None:
        return ""
    text = f"refuses the operator's token: {_text(why[1])}"
    try:
        ahead = parsedate_to_datetime(headers["Date"]).timestamp() - time.time()
    except (KeyError, ValueError):
        return text
    if abs(ahead) < _CLOCK_SECONDS:
        return text
    where = "ahead of" if ahead > 0 else "behind"
    minutes = round(abs(ahead) / 60)
    return f"{text}. Its clock is {minutes} min {where} the operator's: compare its node's clock"


def _missing_dependencies(entries: Iterable[Object]) -> Iterator[MissingDependency]:
    for entry in entries:
        yield MissingDependency(_text(entry["kind"]), _text(entry["name"]), _text(entry["reason"]))


def _text(value: object) -> str:
    return " ".join(str(value).split())[:_MAX_TEXT]
