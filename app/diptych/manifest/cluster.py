"""The parts of a manifest that a cluster applies; a laptop checks them, and takes the variables."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    Field,
)

from diptych.manifest.fields import (
    DnsLabel,
    FreeForm,
    KeyRef,
    LongList,
    LongText,
    ObjectName,
    Port,
    ShortList,
    StringMap,
    VariableName,
)
from diptych.manifest.rules import (
    Rule,
    StrictModel,
    UniqueNames,
    int_or_pattern,
    pattern,
)

Quantity: TypeAlias = Annotated[
    int | str,
    int_or_pattern(
        r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?",
        'must be a quantity such as "500m", "2" or "512Mi"',
        32,
    ),
]


ImageName: TypeAlias = Annotated[
    str, pattern(r"[!-~]+", "must be the name of an image, without blanks", 512)
]


class VariableRef(KeyRef):
    """A key that a variable takes its value from."""

    optional: bool = False
    """Whether the key may be missing."""


class FieldRef(StrictModel):
    """A field of the pod, such as `status.podIP`."""

    field_path: Annotated[str, Field(min_length=1, max_length=512)]
    """The field's path, as in a Kubernetes container."""
    api_version: Annotated[str, Field(max_length=63)] | None = None
    """The version of the API that the path belongs to."""


class ResourceFieldRef(StrictModel):
    """A resource of a container, such as `limits.memory`."""

    resource: Annotated[str, Field(min_length=1, max_length=253)]
    """The resource's name."""
    container_name: DnsLabel | None = None
    """The container whose resource is meant."""
    divisor: Quantity | None = None
    """The unit that the value is given in."""


class VariableSource(StrictModel):
    """The source of a variable's value, as in a Kubernetes container."""

    exactly_one_of = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")

    config_map_key_ref: VariableRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: VariableRef | None = None
    """A key of a Secret."""
    field_ref: FieldRef | None = None
    """A field of the pod."""
    resource_field_ref: ResourceFieldRef | None = None
    """A resource of the container."""


class Variable(StrictModel):
    """A variable of the container; without `value` and `valueFrom` it is empty (Kubernetes)."""

    at_most_one_of = ("value", "valueFrom")

    name: VariableName
    """The variable's name."""
    value: LongText | None = None
    """The variable's value."""
    value_from: VariableSource | None = None
    """The source of the value."""


class ObjectRef(StrictModel):
    """A whole Secret or ConfigMap of the agent's namespace."""

    name: ObjectName
    """The object's name."""
    optional: bool = False
    """Whether the object may be missing."""


class VariablesFrom(StrictModel):
    """All keys of a Secret or ConfigMap, as variables."""

    exactly_one_of = ("configMapRef", "secretRef")

    config_map_ref: ObjectRef | None = None
    """A ConfigMap."""
    secret_ref: ObjectRef | None = None
    """A Secret."""
    prefix: Annotated[
        str, pattern(r"([A-Za-z_][-._A-Za-z0-9]*)?", "must begin a variable's name", 253)
    ] = ""
    """A text that is put before each key to make the variable's name."""


class Resources(StrictModel):
    """The resources that the container requests, and its limits."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    """The resources that are reserved for the container."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    """The most that the container may use."""


class ContainerSpec(StrictModel):
    """Kubernetes' own fields of the agent's container."""

    image: ImageName | None = None
    """An image in place of the operator's default; it must hold the `diptych` command."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""
    env: Annotated[
        LongList[Variable], UniqueNames("variables", lambda variable: variable.name)
    ] = ()
    """Variables of the container, such as DEBUG_MOCK_RESPONSES."""
    env_from: ShortList[VariablesFrom] = ()
    """Secrets and ConfigMaps whose keys become variables. Of two variables with the same name, the
    one in `env` counts."""
    resources: Resources | None = None
    """Requests and limits in place of the operator's defaults."""


class PodMetadata(StrictModel):
    """Labels and annotations of the pods."""

    labels: StringMap = Field(default_factory=dict)
    """Labels added to the pods'. The labels that the operator needs cannot be changed."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations added to the pods'."""


class PodTemplate(StrictModel):
    """Overrides of the pods' template; they are merged last."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    """Labels and annotations of the pods."""
    spec: FreeForm = Field(default_factory=dict)
    """Any part of a Kubernetes PodSpec. Mappings are merged. In lists, entries with the same name
    are merged (volumeMounts by mountPath, ports by containerPort); other lists are replaced. Our
    container is called `agent`, that of an MCPServer `server`."""


_RESERVED = r"([^/]*[.])?(kubernetes[.]io|k8s[.]io|diptych[.]dev)/.*"


def _not_reserved(field: str) -> Rule:
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, !k.matches('^{_RESERVED}$'))",
        f"{field}: keys of kubernetes.io, k8s.io and diptych.dev are not the agent's to set",
        lambda spec: not any(re.fullmatch(_RESERVED, key) for key in getattr(spec, field)),
    )


class ChildMetadata(StrictModel):
    """Labels and annotations of all that is made of the agent."""

    rules = (_not_reserved("labels"), _not_reserved("annotations"))

    labels: StringMap = Field(default_factory=dict)
    """Labels of the agent's Deployment, pods, Service and all its other objects."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations of the same objects."""


class GatewayRef(StrictModel):
    """A Gateway of the Gateway API, to which an HTTPRoute is attached."""

    name: ObjectName
    """The Gateway's name."""
    namespace: DnsLabel | None = None
    """The Gateway's namespace; the agent's if absent."""
    section_name: DnsLabel | None = None
    """The Gateway's listener; all that take the host if absent."""


class IngressSpec(StrictModel):
    """An Ingress."""

    class_name: ObjectName | None = None
    """The IngressClass; the cluster's default if absent."""


class TlsSpec(StrictModel):
    """TLS, which ends at the gateway or the Ingress."""

    secret_name: ObjectName | None = None
    """The Secret with certificate and key, of the agent's namespace; for an Ingress only, whose
    controller may have one of its own."""


class ExposeSpec(StrictModel):
    """The agent's address outside the cluster."""

    exactly_one_of = ("gateway", "ingress")
    rules = (
        Rule(
            "!has(self.gateway) || !has(self.tls) || !has(self.tls.secretName)",
            "a gateway has its certificate itself: leave tls.secretName out",
            lambda spec: not (spec.gateway and spec.tls and spec.tls.secret_name),
        ),
    )

    host: Annotated[
        str,
        Field(max_length=253),
        pattern(
            r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+",
            "must be a host name such as agent.example.com, in lower case",
            253,
        ),
    ]
    """The host name under which the agent is reached."""
    gateway: GatewayRef | None = None
    """Makes an HTTPRoute."""
    ingress: IngressSpec | None = None
    """Makes an Ingress."""
    tls: TlsSpec | None = None
    """If present, the agent's URL begins with https."""

    @property
    def url(self) -> str:
        """The agent's URL outside of the cluster."""
        return f"{'https' if self.tls else 'http'}://{self.host}"


Cidr: TypeAlias = Annotated[
    str, pattern(r"[0-9a-fA-F.:]+/[0-9]{1,3}", "must be a range such as 10.0.0.0/8", 64)
]
PortOrName: TypeAlias = Annotated[
    int | str,
    int_or_pattern(
        "[a-z0-9-]{1,15}", "must be a port's number, or the name of a container's port", 15
    ),
]


class Requirement(StrictModel):
    """A condition on one label."""

    rules = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "values are needed for In and NotIn, and for them only",
            lambda spec: (spec.operator in {"In", "NotIn"}) == bool(spec.values),
        ),
    )

    key: Annotated[str, Field(min_length=1, max_length=317)]
    """The label's key."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to `values`."""
    values: LongList[Annotated[str, Field(max_length=63)]] = ()
    """The values that the label's value is compared with."""


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

    rules = (
        Rule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "needs podSelector, namespaceSelector or both, or else ipBlock",
            lambda spec: bool(spec.ip_block) != bool(spec.pod_selector or spec.namespace_selector),
        ),
    )

    pod_selector: LabelSelector | None = None
    """Pods by their labels; in the agent's namespace if there is no namespaceSelector."""
    namespace_selector: LabelSelector | None = None
    """Namespaces by their labels."""
    ip_block: IpBlock | None = None
    """A range of IP addresses."""


class NetworkPort(StrictModel):
    """A port of the pods at the receiving end."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """The transport protocol."""
    port: PortOrName
    """A port's number, or the name of a container's port."""
    end_port: Port | None = None
    """The last port of a range that begins with `port`."""


class IngressRule(StrictModel):
    """Peers that may connect to the agent's pods, and the ports."""

    from_: LongList[NetworkPeer] = Field(default=(), alias="from")
    """The peers that may connect; anybody if absent."""
    ports: LongList[NetworkPort] = ()
    """The ports that they may connect to; all ports if absent."""


class EgressRule(StrictModel):
    """Peers that the agent's pods may connect to, and the ports."""

    to: LongList[NetworkPeer] = ()
    """The peers that the agent may connect to; anybody if absent."""
    ports: LongList[NetworkPort] = ()
    """The ports that it may connect to; all ports if absent."""


class NetworkSpec(StrictModel):
    """Rules added to the NetworkPolicy that follows from the rest of the manifest."""

    extra_ingress: ShortList[IngressRule] = ()
    """Additional clients of the agent, such as a gateway or Prometheus."""
    extra_egress: ShortList[EgressRule] = ()
    """What else the agent may reach."""


class AllowedNamespaces(StrictModel):
    """The namespaces whose Agents may use an object, or delegate to an Agent."""

    rules = (
        Rule(
            "(self.from == 'Selector') == has(self.selector)",
            "selector belongs to `from: Selector`, and to it only",
            lambda spec: (spec.from_ == "Selector") == (spec.selector is not None),
        ),
    )

    from_: Literal["Same", "All", "Selector"] = Field(alias="from")
    """`Same` allows the object's own namespace, `All` every namespace, `Selector` its own and those
    that `selector` selects."""
    selector: LabelSelector | None = None
    """Selects namespaces by their labels."""
