"""Builders for tests of the status: live Deployments and pods."""

from typing import Any


def deployment(wanted=1, updated=1, available=1, total=None, generation=1, **status: Any):
    return {
        "metadata": {"generation": 1},
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": generation,
            "replicas": updated if total is None else total,
            "updatedReplicas": updated,
            "availableReplicas": available,
            **status,
        },
    }


def pod(**status: Any):
    return {"metadata": {"labels": {"app.kubernetes.io/instance": "a"}}, "status": status}


def waiting(reason, message="", **container: Any):
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"image": "x:1", "state": state, **container}])


DOWN = deployment(available=0)
