"""Reconciles ModelAPIs: the children of their proxies and servers, and what their status says."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from diptych_operator.controller.apply import Answers, Applier
from diptych_operator.controller.attempts import Attempts
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.claims import NamespaceClaims
from diptych_operator.controller.cluster_issuer import ClusterIssuer
from diptych_operator.controller.obstacles import Rejected, issuer_unknown
from diptych_operator.controller.status_writer import StatusWriter
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.desired.children import Platform
from diptych_operator.desired.model_api import Users, model_api_children, proxy_config_map_name
from diptych_operator.desired.network_policy import pods_of
from diptych_operator.desired.rollout import is_rolled_out, mounted_config_maps
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    MODEL_API,
    NamespacedName,
    Object,
    ObjectKey,
)
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import ManifestError
from diptych_operator.status.condition import Problem
from diptych_operator.status.model_api import ApiInputs, model_api_status


class ModelApiReconciler:
    """Makes the cluster match the ModelAPIs."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        client: KubernetesClient,
        cache: ObjectCache,
        queue: WorkQueue,
        claims: NamespaceClaims,
        issuer: ClusterIssuer,
        platform: Platform,
        now: Callable[[], str],
    ) -> None:
        """`now` returns the time as the API writes it, in whole seconds."""
        self._cache = cache
        self._queue = queue
        self._claims = claims
        self._issuer = issuer
        self._platform = platform
        answers = Answers(cache, queue)
        self._status_writer = StatusWriter(client, cache, answers, now)
        self._applier = Applier(client, cache, answers, platform.pods.locked)
        self._attempts = Attempts()

    async def reconcile(self, name: NamespacedName) -> float | None:
        """Reconcile a ModelAPI, as `workers.Reconcile` does."""
        key = ObjectKey(MODEL_API, *name)
        api = self._cache.model_api(name)
        if api is None or api.is_terminating:  # the garbage collector deletes its children
            self._forget(key)
            return None
        if not await self._claims.claim(name[0]):
            return None
        if api.is_proxied and self._issuer.current is None:
            await self._issuer.refresh()
        users = self._cache.model_users(api)
        outcome = await self._attempts.outcome(api, self._make_children(api, users))
        inputs = ApiInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            deployments=[self._cache.child(api, DEPLOYMENT, one) for one in api.deployment_names],
            pods=self._cache.pods(key),
            start_problem=self._cache.start_problems.get(key),
            answers=self._cache.answers.get(key, {}),
            agents=len(users),
        )
        again = await self._status_writer.write(api, partial(model_api_status, api, inputs))
        if outcome.failure:
            raise outcome.failure
        return min(filter(None, (again, outcome.retry_after)), default=None)

    async def _make_children(self, api: ModelApi, agents: tuple[Agent, ...]) -> None:
        observed = replace(self._cache.observe_model_api(api), issuer=self._issuer.current)
        users = Users(
            {agent.namespace for agent in agents},
            [
                pods_of(agent.namespace, labels)
                for agent in agents
                for labels in self._cache.pod_selectors(agent)
            ],
        )
        try:
            children = model_api_children(api, observed, users, self._platform)
        except ManifestError as error:
            raise Rejected(Problem(error.reason, f"{error}.")) from error
        except ValueError as error:
            message = f"A URL of the manifest is invalid: {error}."
            raise Rejected(Problem("InvalidUrl", message)) from error
        live = await self._applier.find_live(api, children)
        if api.is_proxied and observed.issuer is None and not observed.config_maps:
            raise issuer_unknown(self._issuer.problem)
        obstacle = await self._applier.apply_all(api, children, live)
        surplus = [(CONFIG_MAP, one, "no pod mounts it any more") for one in self._unused(api)]
        await self._applier.delete_surplus(api, children, surplus)
        if obstacle:
            raise obstacle

    def _unused(self, api: ModelApi) -> list[Object]:
        """Return the live ConfigMaps that no pod of the proxy needs; none while it rolls."""
        deployment, name = self._cache.deployment(api), proxy_config_map_name(api)
        is_mounted = name in mounted_config_maps(deployment)
        if api.is_proxied and not (is_mounted and is_rolled_out(deployment)):
            return []
        config_maps = self._cache.config_maps(api)
        return [one for one in config_maps if not api.is_proxied or one["metadata"]["name"] != name]

    def _forget(self, key: ObjectKey) -> None:
        for referred in self._cache.forget(key):
            self._queue.add(referred)
        self._applier.forget(key)
        self._status_writer.forget(key)
        self._attempts.forget(key)
