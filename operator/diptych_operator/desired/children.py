"""The objects that an Agent needs: `desired_children(agent, observed, platform)`. Pure.

The same Agent, observed state and platform give the same objects. All are named after the Agent;
the ConfigMap also after its content. The Agent owns them, so that the garbage collector deletes
them with it. Its pods own the NetworkPolicy, too: the collector keeps an object until its last
owner is gone, so that the policy holds while the pods of a deleted Agent drain.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diptych_operator.desired.access import (
    ACCESS_KEY,
    AccessSettings,
    access_config_map_name,
    access_text,
)
from diptych_operator.desired.agent_model import (
    MODEL_KEY,
    check_model,
    model_config_map_name,
    model_document,
    model_urls,
)
from diptych_operator.desired.call_policy import check_policy
from diptych_operator.desired.child import (
    child_of,
    owned_by_pods,
    pod_disruption_budget,
    service_spec,
    with_digest,
)
from diptych_operator.desired.deployment import PodDefaults, deployment_spec
from diptych_operator.desired.drift import digest
from diptych_operator.desired.endpoints import noted
from diptych_operator.desired.expose import (
    ExposeSettings,
    check_expose,
    ingress_sources,
    route,
)
from diptych_operator.desired.metadata import MetadataSettings, check_metadata, with_metadata
from diptych_operator.desired.network_policy import NetworkSettings, policy_spec
from diptych_operator.desired.purge import purge_job
from diptych_operator.desired.references import Hosting, ObservedState, may_delegate
from diptych_operator.desired.resolved_manifest import (
    FILE,
    manifest_text,
    resolved_manifest,
    versioned_name,
)
from diptych_operator.desired.rollout import (
    PLATFORM,
    ROLLOUT_MARK,
    has_ended,
    is_replacing_pods,
    is_rolled_out,
    mounted_config_maps,
    rollout_mark,
)
from diptych_operator.desired.schedules import (
    check_schedules,
    schedule_children,
)
from diptych_operator.resources.agent import Agent, PeerRef
from diptych_operator.resources.agent_pool import pool_of_service, target_port
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    NETWORK_POLICY,
    PORT,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
    kind_of,
)
from diptych_operator.resources.owner import ManifestError

_MOCK_RESPONSES = "DEBUG_MOCK_RESPONSES"
MAX_CONFIG_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Platform:
    """The operator's settings that all Agents share: pods, network, who may call, metadata."""

    pods: PodDefaults
    network: NetworkSettings = field(default_factory=NetworkSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    policy: tuple[Mapping[str, Any], ...] = ()
    """Rules for the calls of all Agents, in the form of `spec.policy`."""
    expose: ExposeSettings = field(default_factory=ExposeSettings)

    @property
    def revision(self) -> str:
        """A digest of what goes into the pods of all Agents."""
        return digest({"pods": self.pods, "policy": self.policy})


@dataclass(frozen=True, slots=True)
class Children:
    """The desired children, in the order in which they are applied."""

    to_apply: tuple[Object, ...]
    obsolete: tuple[tuple[Kind, Object, str], ...] = ()
    """Live ConfigMaps and CronJobs that are not needed, each with the reason."""
    purge_job: Object | None = None
    """The suspended Job that deletes the sessions of an Agent that is gone; nobody owns it."""
    keeps_others: bool = False
    """Whether live children that are not among these stay: the Agent is on its way to a pool."""


def desired_children(agent: Agent, observed: ObservedState, platform: Platform) -> Children:
    """Return all objects that an Agent needs.

    Raises `ManifestError`, and `ValueError` for an invalid URL.
    """
    check_agent(agent, observed, platform)
    if agent.pool:
        return _pooled_children(agent, observed, platform)
    manifest = resolved_manifest(agent, observed, platform.policy)
    config_map = _config_map(agent, manifest)
    name = config_map["metadata"]["name"]
    live = observed.deployment
    mounted = mounted_config_maps(live)
    has_model = not agent.model_apis or model_config_map_name(agent) in mounted
    is_rolling = mounted[:1] != (name,) or not has_model or is_replacing_pods(live, observed.pods)
    to_apply = (
        config_map,
        *_access_config_map(agent, observed, platform.access),
        *_model_config_map(agent, observed),
        child_of(agent, SERVICE_ACCOUNT, automountServiceAccountToken=False),
        owned_by_pods(
            child_of(
                agent,
                NETWORK_POLICY,
                spec=policy_spec(
                    agent,
                    observed,
                    platform.network,
                    ingress_sources(agent, platform.expose),
                    keeps_former_egress=is_rolling,
                ),
            ),
            observed.pods,
        ),
        child_of(agent, SERVICE, spec=_service_spec(agent, observed)),
        *pod_disruption_budget(agent, agent.replicas),
        *(child_of(agent, kind, spec=spec) for kind, spec in route(agent)),
        _deployment(agent, name, observed, platform),
        *_schedules(agent, observed, platform),
    )
    return _children(agent, observed, platform, to_apply, are_maps_obsolete=not is_rolling)


def check_agent(agent: Agent, observed: ObservedState, platform: Platform) -> None:
    """Raise `ManifestError` for a manifest that cannot be served."""
    check_expose(agent, observed, platform.expose)  # first: what is withdrawn must be closed
    check_metadata(agent, platform.metadata)
    check_policy(agent)
    check_schedules(agent)
    check_model(agent, observed)
    if agent.pool and (found := list(_not_in_pool(agent))):
        raise ManifestError(
            "NotInPool",
            f"{', '.join(found)} {'needs' if len(found) == 1 else 'need'} pods of the Agent's own; "
            "remove that, or hosting.pool",
        )


def _not_in_pool(agent: Agent) -> Iterator[str]:
    """Yield the fields of a manifest that an Agent in a pool cannot have; the CRD knows, too."""
    yield from (f"spec.{name}" for name in ("podTemplate", "replicas") if name in agent.spec)
    yield from (f"spec.container.{name}" for name in agent.container if name != "env")
    names = {variable.get("name") for variable in agent.container.get("env", ())}
    if names - {_MOCK_RESPONSES}:
        yield f"spec.container.env with anything but {_MOCK_RESPONSES}"
    if any("command" in tool for tool in agent.tools):
        yield "a tool server with command"


def _children(
    agent: Agent,
    observed: ObservedState,
    platform: Platform,
    to_apply: Sequence[Object],
    *,
    are_maps_obsolete: bool,
) -> Children:
    applied = (with_metadata(child, agent, platform.metadata) for child in to_apply)
    purge = purge_job(agent, observed, platform.pods, platform.network)
    kept = {(kind_of(child), child["metadata"]["name"]) for child in to_apply}
    if not agent.is_open and not agent.pool:
        kept.add((CONFIG_MAP, access_config_map_name(agent)))
    why = "the Agent has no such schedule"
    candidates = [(CRON_JOB, live, why) for live in observed.cron_jobs]
    if are_maps_obsolete:
        candidates += [
            (CONFIG_MAP, live, "no pod mounts it any more") for live in observed.config_maps
        ]
    obsolete = [one for one in candidates if (one[0], one[1]["metadata"]["name"]) not in kept]
    return Children(tuple(map(with_digest, applied)), tuple(obsolete), purge)


def _pooled_children(agent: Agent, observed: ObservedState, platform: Platform) -> Children:
    """Return the objects of an Agent in a pool, besides its document there.

    Until the pool serves it, what it had before stays as it is.
    """
    hosting = observed.hosting
    account = child_of(agent, SERVICE_ACCOUNT, automountServiceAccountToken=False)
    is_reached = hosting is not None and is_reached_in(hosting, observed.service)
    if hosting is None or hosting.port is None or not (is_reached or hosting.is_served):
        kept = (account, *_schedules(agent, observed, platform))
        children = _children(agent, observed, platform, kept, are_maps_obsolete=False)
        return replace(children, keeps_others=True)
    to_apply = (
        account,
        *_draining_policy(agent, observed, platform),
        child_of(agent, SERVICE, spec=service_spec(hosting.pool, hosting.port)),
        *(child_of(agent, kind, spec=spec) for kind, spec in route(agent)),
        *_schedules(agent, observed, platform),
    )
    return _children(
        agent, observed, platform, to_apply, are_maps_obsolete=not _is_running(observed.pods)
    )


def is_reached_in(hosting: Hosting, service: Object | None) -> bool:
    """Whether an Agent's Service points at its place in the pool."""
    is_there = pool_of_service(service) == hosting.pool.name
    return is_there and target_port(service) == hosting.port


def _draining_policy(agent: Agent, observed: ObservedState, platform: Platform) -> Iterator[Object]:
    """Yield the NetworkPolicy of pods of its own, as long as some drain."""
    if _is_running(observed.pods):
        spec = policy_spec(agent, observed, platform.network, keeps_former_egress=True)
        yield owned_by_pods(child_of(agent, NETWORK_POLICY, spec=spec), observed.pods)


def _is_running(pods: Iterable[Object]) -> bool:
    return not all(map(has_ended, pods))


def _service_spec(agent: Agent, observed: ObservedState) -> dict[str, Any]:
    """Return the Service's spec; it points at the pool that the Agent leaves until its own pods
    can take work.
    """
    service = observed.service
    if pool_of_service(service) is None or is_rolled_out(observed.deployment):
        return service_spec(agent)
    live = (service or {})["spec"]
    spec = service_spec(agent, target_port(service) or PORT)
    return {**spec, "selector": live["selector"]}


def closed_network_policy(agent: Agent, observed: ObservedState, platform: Platform) -> Object:
    """Return the NetworkPolicy of an Agent that may not be exposed as its manifest asks.

    The pods of the former manifest go on, so what they may reach stays.
    """
    spec = policy_spec(agent, observed, platform.network, keeps_former_egress=True)
    policy = owned_by_pods(child_of(agent, NETWORK_POLICY, spec=spec), observed.pods)
    return with_digest(with_metadata(policy, agent, platform.metadata))


def _access_config_map(
    agent: Agent, observed: ObservedState, settings: AccessSettings
) -> Iterator[Object]:
    """Yield the ConfigMap with an Agent's access file, unless it is open or no issuer is known."""
    if observed.issuer and not agent.is_open:
        text = access_text(agent, observed.callers, observed.issuer, settings)
        yield child_of(agent, CONFIG_MAP, access_config_map_name(agent), data={ACCESS_KEY: text})


def _model_config_map(agent: Agent, observed: ObservedState) -> Iterator[Object]:
    """Yield the ConfigMap with an Agent's model, if that is a ModelAPI's."""
    if agent.model_apis:
        text = json.dumps(model_document(agent), ensure_ascii=False, indent=1)
        note = noted(model_urls(agent), observed.former_urls)
        name = model_config_map_name(agent)
        yield child_of(agent, CONFIG_MAP, name, note, data={MODEL_KEY: text})


def _schedules(agent: Agent, observed: ObservedState, platform: Platform) -> Iterator[Object]:
    found = schedule_children(agent, observed, platform.pods, platform.network)
    for kind, name, content in found:
        yield child_of(agent, kind, name, **content)


def _deployment(
    agent: Agent,
    config_map_name: str,
    observed: ObservedState,
    platform: Platform,
) -> Object:
    """Return the Deployment; another manifest has another ConfigMap, and so rolls the pods."""
    spec = deployment_spec(agent, config_map_name, platform.pods, _peers(agent, observed))
    annotations = {}
    if platform.pods.rollout.is_limited:
        shared = {PLATFORM: platform.revision} | {
            f"{owner.kind.name} {'/'.join(name)}": str(owner.generation)
            for owners in (observed.model_apis, observed.mcp_servers)
            for name, owner in owners.items()
        }
        mark = rollout_mark(agent, spec["template"], observed.deployment, shared)
        annotations[ROLLOUT_MARK] = str(mark)
    return child_of(agent, DEPLOYMENT, annotations=annotations, spec=spec)


def _peers(agent: Agent, observed: ObservedState) -> tuple[PeerRef, ...]:
    return tuple(peer for peer in agent.peers if may_delegate(agent, peer, observed))


def checked_text(manifest: Object) -> str:
    """Return the text of a resolved manifest. Raises `ManifestError` if that is too long."""
    text = manifest_text(manifest)
    size = len(text.encode())
    if size > MAX_CONFIG_BYTES:
        raise ManifestError(
            "TooLarge",
            f"the manifest holds {size // 1024} KiB, and {MAX_CONFIG_BYTES // 1024} "
            "KiB is the most; move texts to ConfigMaps (instructionsFrom) or shorten them",
        )
    return text


def _config_map(agent: Agent, manifest: Object) -> Object:
    text = checked_text(manifest)
    name = versioned_name(agent, text)
    return child_of(agent, CONFIG_MAP, name, immutable=True, data={FILE: text})
