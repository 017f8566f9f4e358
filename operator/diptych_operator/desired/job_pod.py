"""The pods of Jobs: one restricted container, which runs a command of `diptych` and ends. Pure."""

from collections.abc import Mapping
from typing import Any

from diptych_operator.desired.deployment import (
    CONTAINER,
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    PodDefaults,
    on_platform,
)
from diptych_operator.resources.kinds import Object


def job_pod(
    labels: Mapping[str, str],
    container: Mapping[str, Any],
    pods: PodDefaults,
    spec: Mapping[str, Any] | None = None,
) -> Object:
    """Return a Job's pod template, with these fields in its container and its spec.

    Raises `ManifestError` if the operator's pod template does not fit.
    """
    own = {
        "name": CONTAINER,
        "image": pods.image,
        "imagePullPolicy": pods.pull_policy,
        "command": ["diptych"],
        "resources": {
            "requests": {"cpu": "20m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        **container,
        **RESTRICTED_CONTAINER,
    }
    whole = {"restartPolicy": "Never", **RESTRICTED_POD, **(spec or {}), "containers": [own]}
    template = {"metadata": {"labels": dict(labels)}, "spec": whole}
    return on_platform(template, pods)  # a sidecar would never end
