"""The part of a manifest that labels what is made of the agent.

A cluster applies it; a laptop only checks it, by the same rules.
"""

import re
from typing import Self

from pydantic import Field, model_validator

from diptych.manifest.rules import CelRule, rule_error
from diptych.manifest.strict_model import StrictModel, StringMap

_RESERVED = r"([^/]*[.])?(kubernetes[.]io|k8s[.]io|diptych[.]dev)/.*"
_MESSAGE = "keys of kubernetes.io, k8s.io and diptych.dev are not the agent's to set"


def _cel_rule(field: str) -> CelRule:
    rule = f"!has(self.{field}) || self.{field}.all(k, !k.matches('^{_RESERVED}$'))"
    return CelRule(rule, f"{field}: {_MESSAGE}")


class ChildMetadata(StrictModel):
    """Labels and annotations of all that is made of the agent."""

    cel_rules = (_cel_rule("labels"), _cel_rule("annotations"))

    labels: StringMap = Field(default_factory=dict)
    """Labels of the agent's Deployment, pods, Service and all its other objects."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations of the same objects."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        for field, given in (("labels", self.labels), ("annotations", self.annotations)):
            if any(re.fullmatch(_RESERVED, key) for key in given):
                raise rule_error(f"{field}: {_MESSAGE}")
        return self
