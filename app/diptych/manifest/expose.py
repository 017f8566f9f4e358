"""The part of a manifest that says under which host name the agent is reached from outside.

A cluster applies it; a laptop only checks it, by the same rules.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from diptych.manifest.fields import DnsLabel, ObjectName
from diptych.manifest.rules import CelRule, Pattern, rule_error
from diptych.manifest.strict_model import StrictModel

_CERTIFICATE = "a gateway has its certificate itself: leave tls.secretName out"


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
    """How the agent is reached from outside of the cluster."""

    exactly_one_of = ("gateway", "ingress")
    cel_rules = (
        CelRule("!has(self.gateway) || !has(self.tls) || !has(self.tls.secretName)", _CERTIFICATE),
    )

    host: Annotated[
        str,
        Field(max_length=253),
        Pattern(
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

    @model_validator(mode="after")
    def _check_certificate(self) -> Self:
        if self.gateway and self.tls and self.tls.secret_name:
            raise rule_error(_CERTIFICATE)
        return self

    @property
    def url(self) -> str:
        """The agent's URL outside of the cluster."""
        return f"{'https' if self.tls else 'http'}://{self.host}"
