"""The kinds of ours that have children, and which owner an object belongs to by name and labels."""

from collections.abc import Iterator, Mapping
from typing import Final

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import (
    Kind,
    NamespacedName,
    Object,
    ObjectKey,
)
from diptych_operator.resources.labels import APP, INSTANCE, SERVER_APP
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import Owner

OWNERS: Final[Mapping[Kind, type[Owner]]] = {
    kind.kind: kind for kind in (Agent, ModelApi, McpServer, AgentPool)
}


def owners_by_name(child: NamespacedName) -> Iterator[ObjectKey]:
    """Name the owners, of each kind, whose child of `CHILD_KINDS` would have a name."""
    namespace, name = child
    for kind, owner in OWNERS.items():
        for suffix in owner.suffixes:
            if name.endswith(suffix):
                yield ObjectKey(kind, namespace, name.removesuffix(suffix))


def owner_by_labels(content: Object) -> ObjectKey | None:
    """Name the owner whose pod, ConfigMap or Job an object is, by its labels."""
    metadata = content["metadata"]
    labels = metadata.get("labels", {})
    name, kind = labels.get(INSTANCE), _BY_APP.get(labels.get(APP, Agent.app))
    return ObjectKey(kind, metadata["namespace"], name) if name and kind else None


_BY_APP: Final = {
    SERVER_APP: ModelApi.kind,
    **{owner.app: kind for kind, owner in OWNERS.items()},
}
