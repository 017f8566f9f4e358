"""The parts of a manifest that say who may reach an agent, and whom it may reach besides.

Only a cluster makes something of them; a laptop checks them by the same rules.
"""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from diptych.config.manifest.field_types import Few, Many
from diptych.config.manifest.rules import Cel, Form, NumberOr, broken_rule
from diptych.config.manifest.strict_model import Wire, Words

Cidr: TypeAlias = Annotated[
    str, Form(r"[0-9a-fA-F.:]+/[0-9]{1,3}", "must be a range such as 10.0.0.0/8", 64)
]
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]
PortOrName: TypeAlias = Annotated[
    int | str,
    NumberOr("[a-z0-9-]{1,15}", "must be a port's number, or the name of a container's port", 15),
]


class Requirement(Wire):
    """A condition on one label."""

    cel = (
        Cel(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "values are needed for In and NotIn, and for them only",
        ),
    )

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """The label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to `values`."""
    values: Many[Annotated[str, Field(max_length=63)]] = ()
    """What the label's value is compared with."""

    @model_validator(mode="after")
    def _values_where_they_count(self) -> Self:
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise broken_rule("values are needed for In and NotIn, and for them only")
        return self


class LabelSelector(Wire):
    """Chooses objects by their labels; an empty one chooses all."""

    match_labels: Words = Field(default_factory=dict)
    """Labels that must be there with these values."""
    match_expressions: Few[Requirement] = ()
    """Further conditions; all must hold."""


class IpBlock(Wire):
    """A range of addresses."""

    cidr: Cidr
    """The range, such as 10.0.0.0/8."""
    except_: Few[Cidr] = Field(default=(), alias="except")
    """Ranges inside it that do not belong to it."""


class NetworkPeer(Wire):
    """Who is at the other end: pods, or a range of addresses."""

    cel = (
        Cel(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "needs podSelector, namespaceSelector or both, or else ipBlock",
        ),
    )

    pod_selector: LabelSelector | None = None
    """Pods by their labels; of the agent's namespace if there is no namespaceSelector."""
    namespace_selector: LabelSelector | None = None
    """Namespaces by their labels."""
    ip_block: IpBlock | None = None
    """A range of addresses."""

    @model_validator(mode="after")
    def _pods_or_addresses(self) -> Self:
        by_labels = self.pod_selector is not None or self.namespace_selector is not None
        if (self.ip_block is not None) == by_labels:
            raise broken_rule("needs podSelector, namespaceSelector or both, or else ipBlock")
        return self


class NetworkPort(Wire):
    """A port of the pods at the receiving end."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """The protocol."""
    port: PortOrName
    """A number, or the name of a container's port."""
    end_port: Port | None = None
    """The end of a range that begins with `port`."""


class IngressRule(Wire):
    """Who may reach the agent's pods, and at which ports."""

    from_: Many[NetworkPeer] = Field(default=(), alias="from")
    """Any of these; absent, anybody."""
    ports: Many[NetworkPort] = ()
    """At these ports; absent, all."""


class EgressRule(Wire):
    """Whom the agent's pods may reach, and at which ports."""

    to: Many[NetworkPeer] = ()
    """Any of these; absent, anybody."""
    ports: Many[NetworkPort] = ()
    """At these ports; absent, all."""


class NetworkSpec(Wire):
    """Rules added to the NetworkPolicy that follows from the rest of the manifest."""

    extra_ingress: Few[IngressRule] = ()
    """Who else may reach the agent, such as a gateway or Prometheus."""
    extra_egress: Few[EgressRule] = ()
    """Whom else the agent may reach."""


class AllowedNamespaces(Wire):
    """Whose Agents may delegate to this one."""

    cel = (
        Cel(
            "(self.from == 'Selector') == has(self.selector)",
            "selector belongs to `from: Selector`, and to it only",
        ),
    )

    from_: Literal["Same", "All", "Selector"] = Field(alias="from")
    """Those of its own namespace, of all namespaces, or of namespaces with certain labels."""
    selector: LabelSelector | None = None
    """Which namespaces, by their labels."""

    @model_validator(mode="after")
    def _selector_where_it_counts(self) -> Self:
        if (self.from_ == "Selector") != (self.selector is not None):
            raise broken_rule("selector belongs to `from: Selector`, and to it only")
        return self
