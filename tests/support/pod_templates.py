"""Pod templates with one mistake each, and what the real API (v1.34) says of them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PodTemplateMistake:
    """A PodSpec; the field and sentence of `diptych check`; the status and words of the API."""

    name: str
    spec: dict[str, Any]
    field: str
    text: str
    words: str
    status: int = 500


def _agent(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "agent", **fields}]}


_SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
_QUANTITY = 'must be a quantity such as "500m", "2" or "512Mi"'

MISTAKES = (
    PodTemplateMistake(
        "an unknown field",
        {"nodeSelectr": {"a": "b"}},
        "nodeSelectr",
        'is not a field of a Kubernetes PodSpec (did you mean "nodeSelector"?)',
        ".spec.template.spec.nodeSelectr: field not declared in schema",
    ),
    PodTemplateMistake(
        "a list for a mapping",
        {"nodeSelector": ["a"]},
        "nodeSelector",
        "must be a mapping",
        ".spec.template.spec.nodeSelector: expected map, got &{[a]}",
    ),
    PodTemplateMistake(
        "a quantity that is none",
        _agent(resources={"limits": {"memory": "abc"}}),
        "containers[0].resources.limits.memory",
        _QUANTITY,
        "quantities must match the regular expression",
    ),
    PodTemplateMistake(
        "a variable that is a number",
        _agent(env=[{"name": "A", "value": 1}]),
        "containers[0].env[0].value",
        "must be a string; quote it",
        '.spec.template.spec.containers[name="agent"].env[name="A"].value: expected string',
    ),
    PodTemplateMistake(
        "a mapping for a list",
        {"tolerations": {}},
        "tolerations",
        "must be a list",
        ".spec.template.spec.tolerations: expected list, got &{map[]}",
    ),
    PodTemplateMistake(
        "a key that stands twice",
        {"topologySpreadConstraints": [_SPREAD, _SPREAD | {"maxSkew": 2}]},
        "topologySpreadConstraints[1]",
        "has the same topologyKey and whenUnsatisfiable as an entry before it",
        ".spec.template.spec.topologySpreadConstraints: duplicate entries for key "
        '[topologyKey="zone",whenUnsatisfiable="ScheduleAnyway"]',
    ),
    PodTemplateMistake(
        "a text for a boolean",
        {"hostNetwork": "yes"},
        "hostNetwork",
        "must be true or false",
        ".spec.template.spec.hostNetwork: expected boolean, got &{yes}",
    ),
    PodTemplateMistake(
        "a text for a number",
        {"terminationGracePeriodSeconds": "1m"},
        "terminationGracePeriodSeconds",
        "must be a whole number",
        "terminationGracePeriodSeconds: expected numeric (int or float), got string",
    ),
    PodTemplateMistake(
        "a fraction",
        {"priority": 1.5},
        "priority",
        "must be a whole number",
        "cannot convert float64 to int32",
    ),
    PodTemplateMistake(
        "an unknown field further in",
        {"securityContext": {"runAsUsr": 1}},
        "securityContext.runAsUsr",
        'is not a field of a Kubernetes PodSecurityContext (did you mean "runAsUser"?)',
        ".spec.template.spec.securityContext.runAsUsr: field not declared in schema",
    ),
)

GOOD: tuple[dict[str, Any], ...] = (
    {},
    _agent(resources={"limits": {"memory": "1.5Gi", "cpu": 0.5, "ephemeral-storage": "1e3"}}),
    _agent(
        ports=[
            {"containerPort": 53, "protocol": "UDP"},
            {"containerPort": 53, "protocol": "TCP"},
        ],
        livenessProbe={"httpGet": {"port": "http"}},
        volumeMounts=[{"name": "x", "mountPath": "/x", "readOnly": True}],
    ),
    {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [_SPREAD, _SPREAD | {"topologyKey": "rack"}],
        "volumes": [{"name": "x", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    },
)
