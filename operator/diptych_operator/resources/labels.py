"""The labels of an owner's objects, and label selectors."""

from collections.abc import Mapping
from typing import Any, Final

from diptych_operator.resources.kinds import OPERATOR_NAME

_PREFIX: Final = "app.kubernetes.io"
APP: Final = f"{_PREFIX}/name"
INSTANCE: Final = f"{_PREFIX}/instance"
MANAGED_BY: Final = f"{_PREFIX}/managed-by"
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""The label that the API sets on every Namespace: its name."""
OPERATOR_POD_LABELS: Final = {f"{_PREFIX}/name": "diptych", f"{_PREFIX}/component": "operator"}

AGENT_APP: Final = "diptych-agent"
MODEL_APP: Final = "diptych-model"
SERVER_APP: Final = "diptych-llm"
"""Of the pods of a hosted ModelAPI's server; its proxy's have `MODEL_APP`."""
AGENT_POD_LABELS: Final = {APP: AGENT_APP}
POOL_APP: Final = "diptych-pool"
POOL_POD_LABELS: Final = {APP: POOL_APP}

PURGE_POD_LABELS: Final = {
    f"{_PREFIX}/name": "diptych-purge",
    f"{_PREFIX}/component": "agent",
    f"{_PREFIX}/part-of": "diptych",
}
"""Of the pods that purge sessions: a Redis that lets agents in lets them in, and no Service of an
Agent selects them."""


def schedule_pod_labels(name: str) -> dict[str, str]:
    """Return the labels of the pods that start an Agent's scheduled runs; no Service has them."""
    return {
        f"{_PREFIX}/name": "diptych-schedule",
        f"{_PREFIX}/component": "schedule",
        f"{_PREFIX}/part-of": "diptych",
        "diptych.dev/schedules-of": name,
    }


def selector_labels(name: str, app: str = AGENT_APP) -> dict[str, str]:
    """Return the labels that select an owner's pods. A Deployment's selector can never change."""
    return {APP: app, INSTANCE: name}


def child_labels(name: str, app: str = AGENT_APP, component: str = "agent") -> dict[str, str]:
    """Return the labels of an owner's children and pods."""
    return {
        **selector_labels(name, app),
        f"{_PREFIX}/component": component,
        f"{_PREFIX}/part-of": "diptych",
        MANAGED_BY: OPERATOR_NAME,
    }


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches these labels."""
    match_labels = selector.get("matchLabels", {}).items()
    return all(labels.get(key) == value for key, value in match_labels) and all(
        _matches(expression, labels) for expression in selector.get("matchExpressions", ())
    )


def selector_keys(selector: Mapping[str, Any]) -> set[str]:
    """Return the label keys that a selector depends on."""
    expressions = selector.get("matchExpressions", ())
    return {*selector.get("matchLabels", {}), *(expression["key"] for expression in expressions)}


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", ())
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:  # DoesNotExist
            return key not in labels
