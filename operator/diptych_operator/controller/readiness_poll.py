"""Polls for facts that no watch shows: what pods say of themselves, and why one does not start.

An Agent's `/ready` lists missing dependencies to callers that prove to be the operator. Why a pod
does not start, say for want of a volume, stands in the kubelet's Events alone.
"""

import asyncio
import contextlib
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
from diptych_operator.desired.rollout import is_rolled_out, mark_of
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import NamespacedName, Object, ObjectKey
from diptych_operator.resources.owner import READY, Owner
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

REFUSED = "refused"
"""The field of an answer with the reason for which a pod refuses the operator's token."""
_TIMEOUT = aiohttp.ClientTimeout(total=3)
_MAX_PODS = 5
_MAX_BODY = 64 * 1024
_MAX_TEXT = 300
_REFUSED = re.compile(r'error_description="([^"]*)"')
_CLOCK_SECONDS = 60.0  # by which two clocks may differ, as of tokens

_log = logging.getLogger(__name__)


class StatusTokens:
    """Tokens of the operator's ServiceAccount, each with one owner as audience.

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
        self._tokens: dict[str, tuple[str | None, float]] = {}
        """The token, None if the API gave none, and the time until which that holds."""

    async def token(self, audience: str) -> str | None:
        """Return a token for an audience; None if the API refuses one."""
        if self._account is None:
            return None
        token, until = self._tokens.get(audience, (None, 0.0))
        now = self._clock()
        if now >= until:
            token = await self._request(self._account, audience) or token
            self._tokens[audience] = (
                token,
                now + (TOKEN_RENEWED_AFTER if token else TOKEN_RETRY_SECONDS),
            )
        return token

    def keep(self, audiences: set[str]) -> None:
        """Forget the tokens of all other audiences."""
        for audience in self._tokens.keys() - audiences:
            del self._tokens[audience]

    async def _request(self, account: NamespacedName, audience: str) -> str | None:
        try:
            return await self._client.create_token(account, audience, TOKEN_SECONDS)
        except ApiError as error:
            _log.warning("no token for %s to ask pods with: %s", audience, error)
            return None


class ReadinessPoll:
    """Polls the pods of all owners; a changed answer queues the owner."""

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
        """Poll all owners, forever."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
            while True:
                found = map(self._cache.owner, tuple(self._cache.owner_keys()))
                owners = [one for one in found if one and not one.is_terminating]
                self._tokens.keep({owner.audience for owner in owners})
                for start in range(0, len(owners), AT_ONCE):
                    batch = owners[start : start + AT_ONCE]
                    await asyncio.gather(*(self._poll(owner, session) for owner in batch))
                    await asyncio.sleep(TICK)
                await asyncio.sleep(PERIOD)

    async def _poll(self, owner: Owner, session: aiohttp.ClientSession) -> None:
        if not self._cache.has_own_pods(owner):
            return  # its pool's pods tell of it: `pool_handover`
        key, revision = owner.key, self._revision(owner)
        answers = await self._ask_pods(owner, session)
        if self._cache.owner(key) is None:
            return
        has_changed = self._note(owner, answers, revision)
        if await self._ask_for_events(key) or has_changed:
            self._queue.add(key)

    def _note(self, owner: Owner, answers: Mapping[str, Object], revision: str) -> bool:
        """Put the pods' answers into the cache; return whether they have changed."""
        cache, key = self._cache, owner.key
        if not isinstance(owner, Agent):
            has_changed = cache.answers.get(key) != answers
            cache.answers[key] = answers
            return has_changed
        known, missing = cache.missing_dependencies, _missing(answers)
        ends = {**cache.scheduled_ends.get(key, {}), **scheduled_ends(answers)}
        has_changed = key not in known or (missing, revision, ends) != (
            *(known[key], cache.asked.get(key)),
            cache.scheduled_ends.get(key, {}),
        )
        known[key], cache.asked[key], cache.scheduled_ends[key] = missing, revision, ends
        return has_changed

    def _revision(self, owner: Owner) -> str:
        """Return the pod template's digest of which all pods are; empty while they roll."""
        deployment = self._cache.deployment(owner)
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

    async def _ask_pods(self, owner: Owner, session: aiohttp.ClientSession) -> dict[str, Object]:
        """Return what pods answer, by their names; those without a usable answer are left out."""
        if (port := owner.ready_port) is None:
            return {}
        pods = {
            pod["metadata"]["name"]: pod_address(pod)
            for pod in self._cache.pods(owner.key)
            if owner.ready_labels.items() <= pod["metadata"]["labels"].items()
        }
        asked = [(pod, address) for pod, address in pods.items() if address][:_MAX_PODS]
        is_ours = owner.ready_path == READY  # servers of others get no token
        token = await self._tokens.token(owner.audience) if asked and is_ours else None
        found = await asyncio.gather(
            *(
                _ask_pod(session, f"{_host(address)}:{port}{owner.ready_path}", token)
                for _, address in asked
            )
        )
        return {pod: answer for (pod, _), answer in zip(asked, found, strict=True) if answer}


def _missing(answers: Mapping[str, Object]) -> tuple[MissingDependency, ...] | None:
    """Return all pods' missing dependencies, without duplicates; None if no pod has answered."""
    found = {}
    for pod, answer in answers.items():
        if refused := answer.get(REFUSED):
            found[pod] = [MissingDependency("pod", pod, refused)]
            continue
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # of some other server
            found[pod] = list(missing_dependencies(answer["missing"]))
    return merged(found) if found else None


def scheduled_ends(answers: Mapping[str, Object]) -> dict[str, Object]:
    """Return the last end of each schedule's runs that any pod knows, by the CronJob's name."""
    found = [
        {field: _text(one[field]) for field in ("schedule", "run_id", "end", "ended_at")}
        for answer in answers.values()
        for one in answer.get("scheduled") or ()
    ]
    return {one["schedule"]: one for one in sorted(found, key=lambda one: one["ended_at"])}


def merged(answers: Mapping[str, Sequence[MissingDependency]]) -> tuple[MissingDependency, ...]:
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


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


async def _ask_pod(
    session: aiohttp.ClientSession, address: str, token: str | None
) -> Object | None:
    """Return the JSON of a pod's answer; None without a usable one.

    A pod that refuses the token answers with the reason, as `REFUSED`.
    """
    url, headers = f"http://{address}", {"Authorization": f"Bearer {token}"}
    try:
        async with session.get(
            url, headers=headers if token else None, allow_redirects=False
        ) as response:
            body = await response.content.read(_MAX_BODY)
        if refused := _refusal(response.headers):
            return {REFUSED: refused}
        answer = orjson.loads(body)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


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


def missing_dependencies(entries: Iterable[Object]) -> Iterator[MissingDependency]:
    """Read what a pod says of its missing dependencies."""
    for entry in entries:
        yield MissingDependency(_text(entry["kind"]), _text(entry["name"]), _text(entry["reason"]))


def _text(value: object) -> str:
    return " ".join(str(value).split())[:_MAX_TEXT]
