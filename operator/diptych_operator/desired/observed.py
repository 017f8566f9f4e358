"""What a decision about one Agent depends on besides its manifest: the observed state. A value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diptych_operator.desired.access import TokenIssuer
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import NamespacedName, Object


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The part of the cluster that concerns one Agent.

    `services` and `agents` are those that the Agent refers to and that exist. `namespace_labels`
    holds labels by namespace. `watched_namespaces` are the namespaces that the operator watches;
    None means all. `deployment`, `network_policy`, `config_maps` and `pods` are the Agent's own, as
    they are now. `callers` are the Agents that delegate to it, `issuer` signs the tokens of the
    cluster's ServiceAccounts; None until the API has said so.
    """

    services: Mapping[NamespacedName, Object] = field(default_factory=dict)
    agents: Mapping[NamespacedName, Agent] = field(default_factory=dict)
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    watched_namespaces: frozenset[str] | None = None
    deployment: Object | None = None
    network_policy: Object | None = None
    config_maps: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    callers: Sequence[NamespacedName] = ()
    issuer: TokenIssuer | None = None
    exposed_at_host: Sequence[Object] = ()
    """The Agents that ask to be exposed under the host name of this one, itself among them."""

    def is_watched(self, namespace: str) -> bool:
        return self.watched_namespaces is None or namespace in self.watched_namespaces
