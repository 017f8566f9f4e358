"""Which kinds, namespaces and labels are watched and listed."""

from collections.abc import Iterator

from diptych_operator.resources.kinds import (
    AGENT,
    CHILD_KINDS,
    CONFIG_MAP,
    JOB,
    NAMESPACE,
    OPERATOR_NAME,
    POD,
    ROUTE_KINDS,
    SERVICE,
    Kind,
)
from diptych_operator.resources.labels import MANAGED_BY

_OWN_OBJECTS_ONLY = (
    *(kind for kind in CHILD_KINDS if kind is not SERVICE),
    *(*ROUTE_KINDS, CONFIG_MAP, JOB, POD),
)
"""Kinds of which only objects with the operator's label are watched. A Service of somebody else may
be one that an Agent refers to."""


def watched_kinds(namespaces: frozenset[str] | None) -> tuple[Kind, ...]:
    """Give the kinds to watch. An operator of some namespaces has no right to read Namespaces."""
    kinds = (AGENT, *CHILD_KINDS, CONFIG_MAP, JOB, POD)
    return kinds if namespaces is not None else (*kinds, NAMESPACE)


def watched_paths(namespaces: frozenset[str] | None) -> Iterator[str]:
    """Give the API paths to watch."""
    for kind in watched_kinds(namespaces):
        for namespace in namespaces or ("",):
            yield kind.path(namespace)


def label_selector(kind: Kind) -> str:
    """Give the label selector for a kind; empty for all objects."""
    return f"{MANAGED_BY}={OPERATOR_NAME}" if kind in _OWN_OBJECTS_ONLY else ""
