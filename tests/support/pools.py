"""AgentPools in tests of the operator: the objects, and pods that do as they are told."""

from support.agents import service

from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import AGENT_POOL, POD, SERVICE, ObjectKey
from diptych_operator.status.pooled import PoolEntry

POOL = ObjectKey(AGENT_POOL, "team", "shared")
REDIS = {"serviceRef": {"name": "redis", "port": 8000}}


def pool_object(name="shared", namespace="team", **spec):
    metadata = {"name": name, "namespace": namespace, "uid": f"{name}-pool", "generation": 1}
    return {"metadata": metadata, "spec": {"replicas": 2, "redis": REDIS, **spec}}


def pool(name="shared", **spec):
    return AgentPool.read(pool_object(name, **spec))


def pool_pod(name, *, is_ready=True, address="127.0.0.1"):
    labels = {
        "app.kubernetes.io/name": "diptych-pool",
        "app.kubernetes.io/instance": "shared",
        "app.kubernetes.io/managed-by": "diptych-operator",
    }
    conditions = [{"type": "Ready", "status": "True" if is_ready else "False"}]
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": labels},
        "status": {"phase": "Running", "podIP": address, "conditions": conditions},
    }


async def serve(harness, *, pods=("p-0", "p-1"), state="ready", reason="", **states):
    """Have pods report every document that they were handed, then bring the operator to rest.

    `states` has those of single Agents.
    """
    record = harness.handover.record(POOL)
    report = {
        name: PoolEntry(document.digest, states.get(name, state), reason)
        for name, document in (record.documents or {}).items()
    }
    record.reports = dict.fromkeys(pods, report)
    await harness.until_done()


async def with_pods(harness):
    """Bring the pool's Deployment up, with two pods that are ready."""
    harness.api.put(SERVICE, service("redis"))
    await harness.until_done()
    harness.api.settle()
    for name in ("p-0", "p-1"):
        harness.api.put(POD, pool_pod(name))
    await harness.until_done()
