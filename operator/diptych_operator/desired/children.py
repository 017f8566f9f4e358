"""The objects that an Agent needs: `desired_children(agent, observed, platform)`. Pure.

The same Agent, observed state and platform give the same objects. All are named after the Agent;
the ConfigMap also after its content. The Agent owns them, so that the garbage collector deletes
them with it. Its pods own the NetworkPolicy, too: the collector keeps an object until its last
owner is gone, so that the policy holds while the pods of a deleted Agent drain.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from diptych_operator.desired.references import ObservedState, may_delegate
from diptych_operator.desired.resolved_manifest import (
    FILE,
    manifest_text,
    resolved_manifest,
    versioned_name,
)
from diptych_operator.desired.rollout import (
    PLATFORM,
    ROLLOUT_MARK,
    is_replacing_pods,
    mounted_config_maps,
    rollout_mark,
)
from diptych_operator.desired.schedules import (
    check_schedules,
    schedule_children,
)
from diptych_operator.resources.agent import Agent, PeerRef
from diptych_operator.resources.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    NETWORK_POLICY,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
    kind_of,
)
from diptych_operator.resources.owner import ManifestError

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


def desired_children(agent: Agent, observed: ObservedState, platform: Platform) -> Children:
    """Return all objects that an Agent needs.

    Raises `ManifestError`, and `ValueError` for an invalid URL.
    """
    check_expose(agent, observed, platform.expose)  # first: what is withdrawn must be closed
    check_metadata(agent, platform.metadata)
    check_policy(agent)
    check_schedules(agent)
    check_model(agent, observed)
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
        child_of(agent, SERVICE, spec=service_spec(agent)),
        *pod_disruption_budget(agent, agent.replicas),
        *(child_of(agent, kind, spec=spec) for kind, spec in route(agent)),
        _deployment(agent, name, observed, platform),
        *_schedules(agent, platform),
    )
    applied = (with_metadata(child, agent, platform.metadata) for child in to_apply)
    purge = purge_job(agent, observed, platform.pods, platform.network)
    kept = {(kind_of(child), child["metadata"]["name"]) for child in to_apply}
    if not agent.is_open:
        kept.add((CONFIG_MAP, access_config_map_name(agent)))
    why = "the Agent has no such schedule"
    candidates = [(CRON_JOB, live, why) for live in observed.cron_jobs]
    if not is_rolling:
        candidates += [
            (CONFIG_MAP, live, "no pod mounts it any more") for live in observed.config_maps
        ]
    obsolete = [one for one in candidates if (one[0], one[1]["metadata"]["name"]) not in kept]
    return Children(tuple(map(with_digest, applied)), tuple(obsolete), purge)


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


def _schedules(agent: Agent, platform: Platform) -> Iterator[Object]:
    for kind, name, content in schedule_children(agent, platform.pods, platform.network):
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


def _config_map(agent: Agent, manifest: Object) -> Object:
    text = manifest_text(manifest)
    size = len(text.encode())
    if size > MAX_CONFIG_BYTES:
        raise ManifestError(
            "TooLarge",
            f"the manifest holds {size // 1024} KiB, and {MAX_CONFIG_BYTES // 1024} "
            "KiB is the most; move texts to ConfigMaps (instructionsFrom) or shorten them",
        )
    name = versioned_name(agent, text)
    return child_of(agent, CONFIG_MAP, name, immutable=True, data={FILE: text})
