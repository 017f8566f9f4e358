"""The `AgentPool` manifest: pods that run many Agents."""

from typing import Annotated, Literal

from pydantic import Field

from diptych.manifest.cluster import PodTemplate, Resources
from diptych.manifest.metadata import SharedManifest
from diptych.manifest.rules import Rule, StrictModel
from diptych.manifest.sessions import RedisSpec


class AgentPoolSpec(StrictModel):
    """The pods of a pool."""

    rules = (
        Rule(
            "!has(self.replicas) || self.replicas <= 1 || has(self.redis)",
            "replicas above 1 need redis: without it each pod knows its own sessions only",
            lambda spec: spec.replicas <= 1 or spec.redis,
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=100)] = 1
    """How many pods there are; each serves all Agents of the pool. More than 1 need redis."""
    pod_template: PodTemplate | None = None
    """Overrides of the pods' template; they are merged last."""
    resources: Resources | None = None
    """Requests and limits of the pods in place of the operator's defaults."""
    redis: RedisSpec | None = None
    """The Redis that stores runs and sessions of Agents that name none."""
    max_agents: Annotated[int, Field(ge=1, le=1000)] = 200
    """The most Agents that the pool takes. Those beyond say so in their conditions."""


class AgentPoolManifest(SharedManifest):
    """Pods that run many Agents, which choose it by hosting.pool. A pool is one trust domain."""

    kind: Literal["AgentPool"]
    """The kind of the manifest."""
    spec: AgentPoolSpec
    """The pool's pods."""
