"""The Job that deletes an Agent's sessions from its Redis once the Agent is gone. Pure.

It is made with the Agent, suspended, and nobody owns it: so it outlives the Agent, and knows all
that is needed when nothing else is left.
"""

import json
from typing import Any

from diptych_operator.desired.deployment import PodDefaults
from diptych_operator.desired.drift import digest
from diptych_operator.desired.job_pod import job_pod
from diptych_operator.desired.network_policy import NetworkSettings, redis_egress_rules
from diptych_operator.desired.references import ObservedState
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import JOB, NETWORK_POLICY, Object
from diptych_operator.resources.labels import INSTANCE, PURGE_POD_LABELS, child_labels

AGENT_UID = "diptych.dev/agent-uid"
"""The annotation of a purge Job with the uid of the Agent whose sessions it deletes."""
SESSIONS = "diptych.dev/sessions"
"""The annotation of a purge Job with the key of these sessions."""
_POLICY = "diptych.dev/network-policy"
"""The annotation of a purge Job with the spec of the NetworkPolicy that its pod will need."""

_ACTIVE_SECONDS = 3_600  # then it is given up; `retention` forgets what is left
_TTL_SECONDS = 24 * 3_600  # for people to read its log
_MAX_NAME = 44  # with the rest 63, as a Job's name is a label of its pods


def purge_job(
    agent: Agent, observed: ObservedState, pods: PodDefaults, network: NetworkSettings
) -> Object | None:
    """Return the suspended Job that purges an Agent's sessions; None if they are kept.

    Raises `ManifestError` if the operator's pod template does not fit.
    """
    if not agent.purges_sessions:
        return None
    selector = {**PURGE_POD_LABELS, "diptych.dev/purges": agent.uid}
    policy = {
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": redis_egress_rules(agent, observed, network),
    }
    job: Object = {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "namespace": agent.namespace,
            "labels": agent.child_labels,
            "annotations": {
                AGENT_UID: agent.uid,
                SESSIONS: agent.sessions_key,
                _POLICY: json.dumps(policy, sort_keys=True),
            },
        },
        "spec": {
            "suspend": True,
            "backoffLimit": 20,
            "activeDeadlineSeconds": _ACTIVE_SECONDS,
            "ttlSecondsAfterFinished": _TTL_SECONDS,
            "template": job_pod(
                selector, {"args": _arguments(agent), "env": [_redis_url(agent)]}, pods
            ),
        },
    }
    job["metadata"]["name"] = f"{agent.name[:_MAX_NAME].rstrip('-')}-purge-{digest(job)[:10]}"
    return job


def purge_policy(job: Object) -> Object:
    """Return the NetworkPolicy of a live Job's pod, which goes with the Job."""
    metadata = job["metadata"]
    owner = {"apiVersion": JOB.api_version, "kind": JOB.name, "controller": True}
    return {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.name,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": child_labels(metadata["labels"][INSTANCE]),
            "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "spec": json.loads(metadata["annotations"][_POLICY]),
    }


def started(job: Object) -> Object:
    """Return what to apply to a live Job so that it runs."""
    metadata = {name: job["metadata"][name] for name in ("name", "namespace")}
    head = {"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": metadata}
    return {**head, "spec": {"suspend": False}}


def _arguments(agent: Agent) -> list[str]:
    name = f"{agent.namespace}/{agent.name}"
    return ["purge-sessions", name, "--sessions", agent.sessions_key]


def _redis_url(agent: Agent) -> dict[str, Any]:
    ref = agent.redis_service
    if ref is None:
        return {"name": "REDIS_URL", "valueFrom": agent.redis["urlFrom"]}
    namespace, name = ref.name
    return {"name": "REDIS_URL", "value": f"redis://{name}.{namespace}:{ref.port}"}
