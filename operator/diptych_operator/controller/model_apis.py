"""Reconciles ModelAPIs: the children of their proxies and servers, and what their status says."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from diptych_operator.controller.attempts import Outcome
from diptych_operator.controller.obstacles import as_rejection, issuer_unknown
from diptych_operator.controller.owner_reconciler import OwnerReconciler
from diptych_operator.desired.model_api import Users, model_api_children, proxy_config_map_name
from diptych_operator.desired.rollout import is_rolled_out, mounted_config_maps
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import CONFIG_MAP, DEPLOYMENT, Object
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.status.model_api import ApiInputs, model_api_status

_Users: TypeAlias = tuple[Agent, ...]


class ModelApiReconciler(OwnerReconciler[ModelApi, _Users]):
    """Makes the cluster match the ModelAPIs."""

    owner_type = ModelApi

    async def _observe(self, owner: ModelApi) -> _Users:
        return self._cache.model_users(owner)

    def _status(
        self, owner: ModelApi, state: _Users, outcome: Outcome
    ) -> Callable[[str], Mapping[str, Any]]:
        inputs = ApiInputs(
            rejection=outcome.rejection,
            blocker=outcome.blocker,
            deployments=[
                self._cache.child(owner, DEPLOYMENT, one) for one in owner.deployment_names
            ],
            pods=self._cache.pods(owner.key),
            start_problem=self._cache.start_problems.get(owner.key),
            answers=self._cache.answers.get(owner.key, {}),
            agents=len(state),
        )
        return partial(model_api_status, owner, inputs)

    async def _make_children(self, owner: ModelApi, state: _Users) -> None:
        observed = replace(self._cache.observe_model_api(owner), issuer=self._issuer.current)
        users = Users({agent.namespace for agent in state}, self._peers_of(state))
        with as_rejection():
            children = model_api_children(owner, observed, users, self._platform)
        if owner.is_proxied and observed.issuer is None and not observed.config_maps:
            raise issuer_unknown(self._issuer.problem)
        surplus = ((CONFIG_MAP, one, "no pod mounts it any more") for one in self._unused(owner))
        if obstacle := await self._apply(owner, children, surplus):
            raise obstacle

    def _unused(self, api: ModelApi) -> list[Object]:
        """Return the live ConfigMaps that no pod of the proxy needs; none while it rolls."""
        deployment, name = self._cache.deployment(api), proxy_config_map_name(api)
        is_mounted = name in mounted_config_maps(deployment)
        if api.is_proxied and not (is_mounted and is_rolled_out(deployment)):
            return []
        config_maps = self._cache.config_maps(api)
        return [one for one in config_maps if not api.is_proxied or one["metadata"]["name"] != name]
