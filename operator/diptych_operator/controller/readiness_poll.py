"""Polls for facts that no watch shows: missing dependencies, and why a pod does not start.

A pod's `/ready` lists missing dependencies to callers that prove to be the operator. Why a pod does
not start, say for want of a volume, stands in the kubelet's Events alone.
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
from diptych_operator.desired.rollout import is_rolled_out, mark_of
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import AGENT, PORT, NamespacedName, Object, ObjectKey
from diptych_operator.status.conditions import MissingDependency
from diptych_operator.status.pods import is_held_up, pod_address, start_problem

PERIOD = 5.0
"""Seconds between two polls of an Agent, if there are few Agents."""
AT_ONCE = 20
"""Agents polled at a time; with more, the period gets longer by `TICK` for each so many."""
TICK = 1.0
TOKEN_SECONDS = 3600
"""For which a token is asked; the API may give another time."""
TOKEN_RENEWED_AFTER = 1800.0
"""Seconds after which a token is replaced: well before it expires, whatever the API gives."""
TOKEN_RETRY_SECONDS = 60.0

_TIMEOUT = aiohttp.ClientTimeout(total=3)
_MAX_PODS = 5
_MAX_BODY = 64 * 1024
_MAX_TEXT = 300
_REFUSED = re.compile(r'error_description="([^"]*)"')
_CLOCK_SECONDS = 60.0  # by which two clocks may differ, as of tokens

_log = logging.getLogger(__name__)


class StatusTokens:
    """Tokens of the operator's ServiceAccount, each with one Agent as audience.

    Without an `account` there are none.
    """

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
        """Return a token for an Agent; None if the API refuses one."""
        if self._account is None:
            return None
        token, until = self._tokens.get(name, (None, 0.0))
        now = self._clock()
        if now >= until:
            token = await self._request(self._account, name) or token
            self._tokens[name] = (
                token,
                now + (TOKEN_RENEWED_AFTER if token else TOKEN_RETRY_SECONDS),
            )
        return token

    def keep(self, names: set[NamespacedName]) -> None:
        """Forget the tokens of all other Agents."""
        for name in self._tokens.keys() - names:
            del self._tokens[name]

    async def _request(self, account: NamespacedName, name: NamespacedName) -> str | None:
        try:
            return await self._client.create_token(account, audience(name), TOKEN_SECONDS)
        except ApiError as error:
            _log.warning("%s/%s: no token to ask its pods with: %s", *name, error)
            return None


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

    async def run(self) -> None:
        """Poll all Agents, forever."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            while True:
                names = tuple(self._cache.agent_names())
                self._tokens.keep(set(names))
                for start in range(0, len(names), AT_ONCE):
                    batch = names[start : start + AT_ONCE]
                    await asyncio.gather(*(self._poll(name, session) for name in batch))
                    await asyncio.sleep(TICK)
                await asyncio.sleep(PERIOD)

    async def _poll(self, name: NamespacedName, session: aiohttp.ClientSession) -> None:
        agent = self._cache.agent(name)
        if agent is None or agent.is_terminating:
            return
        revision = self._revision(agent)
        missing = await self._ask_pods(name, session)
        known, asked = self._cache.missing_dependencies, self._cache.asked
        key = agent.key
        has_changed = key not in known or (missing, revision) != (known[key], asked.get(key))
        known[key] = missing
        asked[key] = revision
        if await self._ask_for_events(key) or has_changed:
            self._queue.add(key)

    def _revision(self, agent: Agent) -> str:
        """Return the pod template's digest of which all pods are; empty while they roll."""
        deployment = self._cache.deployment(agent)
        mark = mark_of(deployment) if is_rolled_out(deployment) else None
        return mark.template if mark else ""

    async def _ask_for_events(self, owner: ObjectKey) -> bool:
        """Look up why a pod does not start; return whether the answer changed.

        Until then the former answer stands, as the owner may be reconciled meanwhile.
        """
        problems, found = self._cache.start_problems, None
        former = problems.get(owner)
        for pod in self._cache.pods(owner):
            if not is_held_up(pod, time.time()):
                continue
            try:
                warnings = await self._client.warnings(owner.namespace, pod["metadata"]["uid"])
            except ApiError as error:  # tried again at the next poll
                _log.debug("%s: its pod's Events cannot be listed: %s", owner, error)
                warnings = []
            if found := start_problem(pod, warnings) or former:
                break
        if found is None:
            problems.pop(owner, None)
        else:
            problems[owner] = found
        return found != former

    async def _ask_pods(
        self, name: NamespacedName, session: aiohttp.ClientSession
    ) -> tuple[MissingDependency, ...] | None:
        """Return all pods' missing dependencies, without duplicates; None if no pod answers."""
        key = ObjectKey(AGENT, *name)
        pods = {pod["metadata"]["name"]: pod_address(pod) for pod in self._cache.pods(key)}
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
    """Merge missing dependencies; one that only some pods miss names these pods."""
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
    """Ask one pod for its missing dependencies; None without a usable answer."""
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
    """Return why a pod refuses the operator's token; empty if it accepts it.

    A wrong clock can be told from the response's Date header.
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
