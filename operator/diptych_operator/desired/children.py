"""The objects of an agent: `desired_children(agent, around, platform)`. Pure.

The same Agent in the same surroundings always gives the same objects, under names that depend on
nothing else. They are owned by the Agent, so that deleting it deletes them.

Not here: what becomes of an object that somebody else owns (`reconcile`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from diptych_operator.desired.deployment import (
    FORMER_CONFIGS,
    PodDefaults,
    config_in,
    deployment_spec,
    former_configs,
    is_settled,
)
from diptych_operator.desired.drift import digest
from diptych_operator.desired.network_policy import (
    Network,
    Rule,
    egress_rules,
    ingress_rules,
    policy_spec,
)
from diptych_operator.desired.references import Surroundings
from diptych_operator.desired.resolved_manifest import (
    FILE,
    config_name,
    config_text,
    resolved_manifest,
)
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    AGENT,
    APPLIED,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    PORT,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
    labels,
    selector_labels,
)

MAX_CONFIG_BYTES = 512 * 1024


class TooLargeError(ValueError):
    """A manifest that fits into no ConfigMap."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What the operator's own settings say: the pods' defaults, and the cluster's network."""

    pods: PodDefaults
    network: Network = field(default_factory=Network)


@dataclass(frozen=True, slots=True)
class Children:
    """What an agent is to own: the config that its pods read, and the rest in order of making."""

    config: Object
    others: tuple[Object, ...]
    obsolete_configs: tuple[str, ...]
    """ConfigMaps of earlier revisions of which no pod runs any more."""


def desired_children(agent: Agent, around: Surroundings, platform: Platform) -> Children:
    """Give all objects of an agent. Raises `MergeError` and `TooLargeError`."""
    config = _config(agent, around)
    name = config["metadata"]["name"]
    before = config_in(around.deployment)
    rolling = not (before == name and is_settled(around.deployment))
    former = _former(around, name) if rolling else ()
    egress = egress_rules(agent, around, platform.network)
    others = (
        _object(agent, SERVICE_ACCOUNT, automountServiceAccountToken=False),
        _object(
            agent,
            NETWORK_POLICY,
            spec=policy_spec(
                agent,
                ingress_rules(agent, platform.network),
                _still_open(around, egress) if rolling else egress,
            ),
        ),
        _object(agent, SERVICE, spec=_service_spec(agent)),
        *_budget(agent),
        _object(
            agent,
            DEPLOYMENT,
            annotations={FORMER_CONFIGS: ",".join(former)} if former else None,
            spec=deployment_spec(agent, name, platform.pods),
        ),
    )
    kept = {name, *former}
    obsolete = tuple(n for n in former_configs(around.deployment) if n not in kept)
    return Children(config, tuple(map(_stamped, others)), obsolete)


def _config(agent: Agent, around: Surroundings) -> Object:
    text = config_text(resolved_manifest(agent, around))
    if len(text.encode()) > MAX_CONFIG_BYTES:
        raise TooLargeError(
            f"the manifest holds {len(text.encode()) // 1024} KiB, and {MAX_CONFIG_BYTES // 1024} "
            "KiB is the most; move texts to ConfigMaps (instructionsFrom) or shorten them"
        )
    config = _object(agent, CONFIG_MAP, immutable=True, data={FILE: text})
    config["metadata"]["name"] = config_name(agent, text)
    return config


def _former(around: Surroundings, current: str) -> tuple[str, ...]:
    """Name the configs that pods may still run with, besides the current one."""
    names = [*former_configs(around.deployment), config_in(around.deployment)]
    return tuple(dict.fromkeys(n for n in names if n is not None and n != current))


def _still_open(around: Surroundings, egress: list[Rule]) -> list[Rule]:
    """Keep what the pods of an earlier revision may still need, while there may be any."""
    policy = around.policy or {}
    before = (policy.get("spec") or {}).get("egress") or []
    return [*egress, *(rule for rule in before if rule not in egress)]


def _service_spec(agent: Agent) -> dict[str, Any]:
    return {
        "type": "ClusterIP",
        "selector": selector_labels(agent.name),
        "ports": [
            {
                "name": "http",
                "protocol": "TCP",
                "appProtocol": "http",
                "port": PORT,
                "targetPort": PORT,
            }
        ],
    }


def _budget(agent: Agent) -> Iterator[Object]:
    if agent.replicas > 1:
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": selector_labels(agent.name)}}
        yield _object(agent, BUDGET, spec=spec)


def _object(
    agent: Agent, kind: Kind, annotations: dict[str, str] | None = None, **content: object
) -> Object:
    metadata: dict[str, Any] = {
        "name": agent.name,
        "namespace": agent.namespace,
        "labels": labels(agent.name),
        "ownerReferences": [
            {
                "apiVersion": AGENT.api_version,
                "kind": AGENT.name,
                "name": agent.name,
                "uid": agent.uid,
                "controller": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **content}


def _stamped(content: Object) -> Object:
    """Write on an object what it is to be, so that a field to be removed is noticed later."""
    annotations = content["metadata"].get("annotations", {})
    stamp = {**annotations, APPLIED: digest(content)}
    return {**content, "metadata": {**content["metadata"], "annotations": stamp}}
