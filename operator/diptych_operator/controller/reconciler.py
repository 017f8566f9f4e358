"""Takes Agents from the work queue and reconciles each of them.

A reconcile observes, decides, applies, deletes surplus children and writes the status.

Level-based: whatever has changed, the whole Agent is reconciled, and a child that has not drifted
costs no request. So the outcome depends on the current state alone, not on which event came, and
a crash between two writes does no harm.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from diptych_operator.controller.apply import Answers, Applier
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.obstacles import (
    Blocked,
    Rejected,
    blocker_of,
    check_ownership,
    issuer_unknown,
    kind_missing,
    retry_after,
)
from diptych_operator.controller.purge_jobs import PurgeJobs
from diptych_operator.controller.rollout_throttle import RolloutThrottle
from diptych_operator.controller.status_writer import StatusWriter
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.access import ACCESS_KEY, access_config_map_name, access_text
from diptych_operator.desired.children import (
    Children,
    Platform,
    closed_network_policy,
    desired_children,
)
from diptych_operator.desired.references import ObservedState
from diptych_operator.desired.rollout import mounted_config_maps
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.kubernetes.errors import (
    ApiError,
    ForbiddenError,
    InvalidError,
    NamespaceTerminatingError,
    NotFoundError,
)
from diptych_operator.resources.agent import Agent, ExposeError, ManifestError, is_owned_by
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    RETRIED,
    ROUTE_KINDS,
    SERVICE,
    Kind,
    NamespacedName,
    Object,
    kind_of,
    namespaced_name_of,
)
from diptych_operator.status.condition import Problem
from diptych_operator.status.conditions import StatusInputs, former_degraded
from diptych_operator.status.pods import NUDGE_SECONDS, refusal
from diptych_operator.status.unresolved import unresolved_references

TRIES = 3
"""After which a write that fails is reported as an obstacle."""
WORKERS = 8
BUG_DELAY = 30.0
"""Seconds after which an Agent is tried again whose reconcile met a bug of the operator."""

_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_Key: TypeAlias = tuple[Kind, NamespacedName]
_log = logging.getLogger(__name__)


class Workers:
    """Reconciles queued Agents, `WORKERS` at a time."""

    def __init__(self, queue: WorkQueue, reconciler: "Reconciler", metrics: Metrics) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._metrics = metrics

    def start(self) -> list["asyncio.Task[None]"]:
        """Start all workers; the caller cancels their tasks."""
        return [asyncio.create_task(self._run(), name=f"worker {n}") for n in range(WORKERS)]

    async def _run(self) -> None:
        while True:
            name = await self._queue.get()
            started = time.monotonic()
            result = await self._process(name)
            self._metrics.count_reconcile(result, time.monotonic() - started)

    async def _process(self, name: NamespacedName) -> str:
        """Reconcile one Agent; return the result for the metrics."""
        try:
            requeue_after = await self._reconciler.reconcile(name)
        except NamespaceTerminatingError as error:  # nothing can be made there any more
            _log.debug("%s/%s: %s", *name, error)
            self._queue.done(name)
            return error.result
        except ApiError as error:
            delay = self._queue.retry(name, error.retry_after)
            _log.warning("%s/%s: %s; trying again in %g s", *name, error, delay)
            return error.result
        except _BUGS:  # an object of a shape that the code does not expect
            _log.exception("%s/%s: a bug in the operator; trying again", *name)
            self._queue.retry(name, BUG_DELAY)
            return "bug"
        self._queue.done(name)
        if requeue_after is not None:
            self._queue.add_after(name, requeue_after)
        return "ok"


class Reconciler:
    """Makes the cluster match the Agents."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        issuer: ClusterIssuer,
        platform: Platform,
        metrics: Metrics,
        now: Callable[[], str],
    ) -> None:
        """`now` returns the time as the API writes it, in whole seconds."""
        self._client = client
        self._cache = cache
        self._queue = queue
        self._claims = claims
        self._issuer = issuer
        self._platform = platform
        answers = Answers(cache, queue)
        self._status_writer = StatusWriter(client, cache, answers, now)
        self._throttle = RolloutThrottle(cache, queue, platform.pods.rollout, metrics)
        self._applier = Applier(client, cache, answers, platform.pods.locked)
        self._purge_jobs = PurgeJobs(client, cache, answers)
        self._failures: Counter[NamespacedName] = Counter()
        """How often in a row an Agent's children could not be written."""
        self._nudged: dict[NamespacedName, float] = {}

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile an Agent; return the seconds after which to reconcile it again, or None.

        Raises `ApiError` if the API failed and a retry may help.
        """
        agent = self._cache.agent(name)
        if agent is None or agent.is_terminating:  # the garbage collector deletes its children
            self._forget(name)
            agent = None
        orphaned = self._purge_jobs.orphaned(name)
        if agent is None and not orphaned:
            return None
        if not await self._claims.claim(name[0]):
            return None  # another operator serves it; if that one goes, `claims` queues the Agent
        await self._purge_jobs.start(name, orphaned)
        return await self._reconcile(agent) if agent else None

    async def _reconcile(self, agent: Agent) -> float | None:
        """Reconcile an Agent that is there, in a namespace that this operator serves."""
        name = agent.namespaced_name
        if self._issuer.current is None and not agent.is_open:
            await self._issuer.refresh()
        observed = replace(self._cache.observe_and_track(agent), issuer=self._issuer.current)
        self._queue_outdated_peers(agent)
        rejection = blocker = failure = None
        try:
            await self._make_children(agent, observed)
        except NamespaceTerminatingError:
            raise
        except Rejected as error:
            rejection = error.problem
        except Blocked as error:
            blocker = error.problem
        except ForbiddenError as error:
            blocker = blocker_of(error)
            _log.warning("%s/%s: %s", *name, error)
        except ApiError as error:
            self._failures[name] += 1
            if self._failures[name] < TRIES:
                raise
            failure, blocker = error, blocker_of(error)
        if failure is None:
            self._failures.pop(name, None)
        missing = self._cache.missing_dependencies
        inputs = StatusInputs(
            rejection=rejection,
            blocker=blocker,
            unresolved=unresolved_references(agent, observed, self._platform.network.domain),
            pods=self._cache.pods(name),
            missing_dependencies=missing.get(name),
            former_degraded=None if name in missing else former_degraded(agent),
            start_problem=self._cache.start_problems.get(name),
            platform_rules=len(self._platform.policy),
            own_containers=agent.own_containers,
            cron_jobs=tuple(
                live for kind, live in self._cache.schedules(agent) if kind is CRON_JOB
            ),
        )
        again = await self._status_writer.write(agent, inputs)
        if failure:
            raise failure
        nudge = await self._nudge(agent)
        return min(filter(None, (again, nudge, retry_after(rejection, blocker))), default=None)

    async def _nudge(self, agent: Agent) -> float | None:
        """Trigger another try for refused pods; return the seconds until the next.

        Changing the Deployment's annotations changes its ReplicaSet, whose controller then tries
        again at once.
        """
        name, deployment = agent.namespaced_name, self._cache.deployment(agent)
        if deployment is None or refusal(deployment) is None:
            self._nudged.pop(name, None)
            return None
        now = time.monotonic()
        left = self._nudged.setdefault(name, now) + NUDGE_SECONDS - now
        if left > 0:
            return left
        self._nudged[name] = now
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._cache.put(DEPLOYMENT, await self._client.annotate(deployment, RETRIED, at))
        return NUDGE_SECONDS

    async def _make_children(self, agent: Agent, observed: ObservedState) -> None:
        try:
            children = desired_children(agent, observed, self._platform)
        except ExposeError as error:
            closed = closed_network_policy(agent, observed, self._platform)
            await self._applier.unexpose(agent, closed)
            raise Rejected(Problem(error.reason, f"{error}.")) from error
        except ManifestError as error:
            raise Rejected(Problem(error.reason, f"{error}.")) from error
        except ValueError as error:
            message = f"A URL of the manifest is invalid: {error}."
            raise Rejected(Problem("InvalidUrl", message)) from error
        await self._apply_children(agent, observed, children)

    async def _apply_children(
        self, agent: Agent, observed: ObservedState, children: Children
    ) -> None:
        """Apply children that have drifted, and delete those that are not desired any more."""
        live = await self._find_live(agent, children)
        check_ownership(agent, children, [live.get(_key(one)) for one in children.to_apply])
        is_mounted = access_config_map_name(agent) in mounted_config_maps(observed.deployment)
        if not (agent.is_open or observed.issuer or is_mounted):
            raise issuer_unknown(self._issuer.problem)
        obstacle, child = None, children.to_apply[0]
        try:
            await self._purge_jobs.ensure(agent, children.purge_job)
            for child in children.to_apply:
                obstacle = await self._apply(agent, child, live) or obstacle
        except InvalidError as error:
            message = f"The cluster does not take the {child['kind']}: {error}"
            raise Rejected(Problem("Refused", message)) from error
        finally:
            self._throttle.end(agent.namespaced_name)
        kinds = {kind_of(child) for child in children.to_apply}
        await self._applier.delete_surplus(agent, kinds, children)
        if obstacle:
            raise obstacle

    def _queue_outdated_peers(self, agent: Agent) -> None:
        """Queue referenced Agents whose access files are outdated."""
        for name in self._cache.peers(agent.namespaced_name):
            peer, issuer = self._cache.agent(name), self._issuer.current
            if peer is None or issuer is None or peer.is_open:
                continue
            live = self._cache.find(CONFIG_MAP, (peer.namespace, access_config_map_name(peer)))
            text = access_text(peer, self._cache.callers(peer), issuer, self._platform.access)
            if live and (live.get("data") or {}).get(ACCESS_KEY) != text:
                self._queue.add(name)

    async def _apply(
        self, agent: Agent, child: Object, live: Mapping[_Key, Object | None]
    ) -> Blocked | None:
        """Apply a child; return the obstacle if that is not possible now, and others may go on."""
        kind, key = kind_of(child), _key(child)
        if key not in live:
            return kind_missing(child)
        if kind is DEPLOYMENT and (waits := self._throttle.try_begin(agent, child, live[key])):
            return Blocked(waits)
        try:
            await self._applier.apply_if_drifted(agent, child, live[key])
        except ForbiddenError as error:
            if kind is not CONFIG_MAP or live[key] is None:
                raise
            _log.warning("%s/%s: %s", *agent.namespaced_name, error)
            return Blocked(blocker_of(error))  # pods go on with the former one
        return None

    async def _find_live(self, agent: Agent, children: Children) -> dict[_Key, Object | None]:
        """Find the objects of the children's names, also those of others.

        A kind that the cluster does not have, as it may lack that of a route, is left out.
        """
        found: dict[_Key, Object | None] = {}
        for child in children.to_apply:
            kind, name = _key(child)
            live = self._cache.find(kind, name)
            if live and kind in ROUTE_KINDS and not is_owned_by(live, agent):  # it may be gone now
                self._cache.remove(kind, live)
                live = None
            if live is None and kind is not SERVICE:  # of other kinds, the cache has our own only
                with contextlib.suppress(NotFoundError):
                    found[kind, name] = await self._client.find(kind, name)
            else:
                found[kind, name] = live
        return found

    def _forget(self, name: NamespacedName) -> None:
        for peer in self._cache.forget(name):
            self._queue.add(peer)
        self._applier.forget(name)
        self._status_writer.forget(name)
        self._throttle.forget(name)
        self._failures.pop(name, None)
        self._nudged.pop(name, None)


def _key(child: Object) -> _Key:
    return kind_of(child), namespaced_name_of(child)
