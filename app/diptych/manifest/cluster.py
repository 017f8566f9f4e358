"""The part of a manifest that says who may reach an agent, and what its pods may reach.

A cluster applies it; a laptop only checks it, by the same rules.
"""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from diptych.manifest.fields import LongList, Port, ShortList
from diptych.manifest.rules import CelRule, IntOrPattern, Pattern, rule_error
from diptych.manifest.strict_model import StrictModel, StringMap

Cidr: TypeAlias = Annotated[
    str, Pattern(r"[0-9a-fA-F.:]+/[0-9]{1,3}", "must be a range such as 10.0.0.0/8", 64)
]
PortOrName: TypeAlias = Annotated[
    int | str,
    IntOrPattern(
        "[a-z0-9-]{1,15}", "must be a port's number, or the name of a container's port", 15
    ),
]


class Requirement(StrictModel):
    """A condition on one label."""

    cel_rules = (
        CelRule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "values are needed for In and NotIn, and for them only",
        ),
    )

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to `values`."""
    values: LongList[Annotated[str, Field(max_length=63)]] = ()
    """The values that the label's value is compared with."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise rule_error("values are needed for In and NotIn, and for them only")
        return self


class LabelSelector(StrictModel):
    """Selects objects by their labels; an empty selector selects all."""

    match_labels: StringMap = Field(default_factory=dict)
    """Labels that an object must have, with these values."""
    match_expressions: ShortList[Requirement] = ()
    """Further conditions on labels; all of them must hold."""


class IpBlock(StrictModel):
    """A range of IP addresses."""

    cidr: Cidr
    """The range, such as 10.0.0.0/8."""
    except_: ShortList[Cidr] = Field(default=(), alias="except")
    """Ranges inside `cidr` that are left out."""


class NetworkPeer(StrictModel):
    """The other end of a connection: pods, or a range of IP addresses."""

    cel_rules = (
        CelRule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "needs podSelector, namespaceSelector or both, or else ipBlock",
        ),
    )

    pod_selector: LabelSelector | None = None
    """Pods by their labels; in the agent's namespace if there is no namespaceSelector."""
    namespace_selector: LabelSelector | None = None
    """Namespaces by their labels."""
    ip_block: IpBlock | None = None
    """A range of IP addresses."""

    @model_validator(mode="after")
    def _check_selectors(self) -> Self:
        by_labels = self.pod_selector is not None or self.namespace_selector is not None
        if (self.ip_block is not None) == by_labels:
            raise rule_error("needs podSelector, namespaceSelector or both, or else ipBlock")
        return self


class NetworkPort(StrictModel):
    """A port of the pods at the receiving end."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """The transport protocol."""
    port: PortOrName
    """A port's number, or the name of a container's port."""
    end_port: Port | None = None
    """The last port of a range that begins with `port`."""


class IngressRule(StrictModel):
    """Who may reach the agent's pods, and at which ports."""

    from_: LongList[NetworkPeer] = Field(default=(), alias="from")
    """The peers that may connect; anybody if absent."""
    ports: LongList[NetworkPort] = ()
    """The ports that they may connect to; all ports if absent."""


class EgressRule(StrictModel):
    """What the agent's pods may reach, and at which ports."""

    to: LongList[NetworkPeer] = ()
    """The peers that the agent may connect to; anybody if absent."""
    ports: LongList[NetworkPort] = ()
    """The ports that it may connect to; all ports if absent."""


class NetworkSpec(StrictModel):
    """Rules added to the NetworkPolicy that follows from the rest of the manifest."""

    extra_ingress: ShortList[IngressRule] = ()
    """Who else may reach the agent, such as a gateway or Prometheus."""
    extra_egress: ShortList[EgressRule] = ()
    """What else the agent may reach."""


class AllowedNamespaces(StrictModel):
    """The namespaces whose Agents may delegate to this one."""

    cel_rules = (
        CelRule(
            "(self.from == 'Selector') == has(self.selector)",
            "selector belongs to `from: Selector`, and to it only",
        ),
    )

    from_: Literal["Same", "All", "Selector"] = Field(alias="from")
    """`Same` allows the agent's own namespace, `All` every namespace, `Selector` its own and those
    that `selector` selects."""
    selector: LabelSelector | None = None
    """Selects namespaces by their labels."""

    @model_validator(mode="after")
    def _check_selector(self) -> Self:
        if (self.from_ == "Selector") != (self.selector is not None):
            raise rule_error("selector belongs to `from: Selector`, and to it only")
        return self
