"""The part of a manifest that says which other agents an agent may delegate to."""

from typing import Self

from pydantic import Field, model_validator

from diptych.manifest.fields import DnsLabel
from diptych.manifest.rules import CelRule, rule_error
from diptych.manifest.strict_model import StrictModel
from diptych.manifest.urls import Url


class PeerSpec(StrictModel):
    """An agent that this one may delegate to: an Agent of the cluster by name, or any by URL."""

    exactly_one_of = ("name", "url")
    cel_rules = (
        CelRule(
            "!has(self.url) || has(self.__as__)",
            'a url needs "as": the name that the model knows the agent by',
        ),
        CelRule("!has(self.url) || !has(self.__namespace__)", "a url has no namespace"),
    )

    name: DnsLabel | None = None
    """The name of an Agent."""
    namespace: DnsLabel | None = None
    """The Agent's namespace, if it is another one. That Agent's allowedNamespaces must agree."""
    as_: DnsLabel | None = Field(default=None, alias="as")
    """The name that the model knows the agent by; the Agent's name if absent. A url needs it."""
    url: Url | None = None
    """The base URL of any A2A agent, or the URL of its agent card."""
    share_context: bool | None = None
    """Whether a delegation carries the last messages of the conversation with its task. If absent,
    an agent by name gets them and an agent by URL does not."""

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.url is not None and self.as_ is None:
            raise rule_error('a url needs "as": the name that the model knows the agent by')
        if self.url is not None and self.namespace is not None:
            raise rule_error("a url has no namespace; remove it, or give a name")
        return self

    @property
    def visible_name(self) -> str:
        return self.as_ or self.name or ""
