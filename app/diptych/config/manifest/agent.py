"""The `Agent` manifest as typed values: what users write (agent.md), and its rules.

A field of type `Later` is known and not built yet: whoever builds it gives it its real type.
Durations are floats of seconds here. What stands nowhere in these models is an error. The text
under a field is its documentation in the cluster (`kubectl explain agent.spec`), where the CRD
that `crds/generate.py` makes of these models checks the same rules.

Not here: files, how mistakes are told, where references lead (all in `configuration`).
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from diptych.config.manifest.container import ContainerSpec, PodTemplate, Variable, VariablesFrom
from diptych.config.manifest.field_types import (
    Duration,
    Label,
    Later,
    LongText,
    Many,
    Text,
    only_yet,
    without_server_metadata,
)
from diptych.config.manifest.model import ModelSpec
from diptych.config.manifest.network import AllowedNamespaces, NetworkSpec
from diptych.config.manifest.rules import Cel, Form, Unique, broken_rule
from diptych.config.manifest.sessions import RedisService, SessionsSpec
from diptych.config.manifest.strict_model import KeyRef, TextSource, Wire
from diptych.config.manifest.tools import PeerSpec, ServiceRef, ToolSpec

__all__ = [
    "API_VERSION",
    "KIND",
    "REFERENCES",
    "AgentManifest",
    "AgentSpec",
    "ContainerSpec",
    "KeyRef",
    "LoopSpec",
    "ModelSpec",
    "PeerSpec",
    "RedisService",
    "ServiceRef",
    "SessionsSpec",
    "ToolSpec",
    "Variable",
    "VariablesFrom",
]

API_VERSION = "diptych.dev/v1alpha1"
KIND = "Agent"
REFERENCES = "diptych.dev/references"
"""The annotation of a manifest that the operator has resolved for a pod. It names the folder
where what the manifest refers to is mounted: `secrets/<name>/<key>`, `configmaps/<name>/<key>`."""

_REPLICAS_ALONE = (
    "replicas above 1 need sessions.redis: without it each pod knows its own sessions only"
)


class LoopSpec(Wire):
    """The bounds and ways of a run."""

    max_steps: Annotated[int, Field(ge=1, le=25)] = 5
    """How often the model may ask for calls before it must answer."""
    on_max_steps: Literal["stop", "answer"] = "stop"
    """What follows when it has: `stop` says so, `answer` lets the model answer anyway."""
    answer_mode: Annotated[Literal["separate", "direct"], only_yet("separate")] = "separate"
    """`separate`: the answer is a model call of its own."""
    max_parallel_calls: Annotated[int, Field(ge=1, le=64)] = 8
    """How many calls of one step run at once."""
    max_retries: Annotated[int, Field(ge=0, le=25)] = 3
    """How many unreadable replies in a row the model may give."""
    answer_repairs: Later = None
    memory_context_limit: Annotated[int, Field(ge=0, le=100)] = 6
    """How many of the last messages go along with a delegation."""
    deadline: Duration = 300.0
    """How long a run may take."""


class AgentSpec(Wire):
    """What an agent is and may do."""

    only_one_of = ("instructions", "instructionsFrom")
    cel = (
        Cel(
            "has(self.model) || has(self.container) && has(self.container.env)"
            " && self.container.env.exists(e, e.name == 'DEBUG_MOCK_RESPONSES')",
            "model is required, unless DEBUG_MOCK_RESPONSES is set in container.env",
        ),
        Cel(
            "!has(self.replicas) || self.replicas <= 1"
            " || has(self.sessions) && has(self.sessions.redis)",
            _REPLICAS_ALONE,
        ),
    )

    description: Text = ""
    """What the agent is good for. Its agent card says it, so that other agents know when to
    delegate to it."""
    instructions: LongText | None = None
    """The system prompt: who the agent is and how it is to act."""
    instructions_from: TextSource | None = None
    """Where the instructions stand, if not here."""
    model: ModelSpec | None = None
    """The model that the agent thinks with."""
    tools: Annotated[Many[ToolSpec], Unique("tool servers", lambda t: str(t.name), "name")] = ()
    """MCP servers whose tools the agent may call."""
    agents: Annotated[
        Many[PeerSpec],
        Unique(
            "agents",
            lambda a: str(a.visible_name),
            "(has(x.__as__) ? x.__as__ : has(x.name) ? x.name : '')",
        ),
    ] = ()
    """Agents that this one may delegate to. They may delegate back: circles are cut at run time."""
    loop: LoopSpec = Field(default_factory=LoopSpec)
    """The bounds of a run."""
    output_schema: Later = None
    policy: Later = None
    budget: Later = None
    context: Later = None
    sessions: SessionsSpec = Field(default_factory=SessionsSpec)
    """How the runs of one conversation are kept and ordered."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """How many pods serve the agent; `kubectl scale` and autoscalers set it. More than 1 need
    sessions.redis."""
    container: ContainerSpec = Field(default_factory=ContainerSpec)
    """What the agent's container is given besides."""
    pod_template: PodTemplate | None = None
    """Overrides of the pods' template, merged last."""
    network: NetworkSpec | None = None
    """Rules added to the agent's NetworkPolicy."""
    allowed_namespaces: AllowedNamespaces | None = None
    """Whose Agents may delegate to this one; those of its own namespace if absent."""

    @model_validator(mode="after")
    def _replicas_share_sessions(self) -> Self:
        if self.replicas > 1 and self.sessions.redis is None:
            raise broken_rule(_REPLICAS_ALONE)
        return self


class Metadata(Wire):
    """The object's name; the rest belongs to Kubernetes, which writes more than users do."""

    name: Annotated[Label, Form("[a-z].*", "must begin with a letter", 63)]
    namespace: Label = "default"
    labels: Any = None
    annotations: Any = None

    @property
    def references(self) -> Path | None:
        """The folder of mounted references, if the manifest has been resolved for a pod."""
        found = self.annotations.get(REFERENCES) if isinstance(self.annotations, dict) else None
        return Path(found) if isinstance(found, str) else None


class AgentManifest(Wire):
    """An AI agent: a model, its instructions, the tools and the other agents that it may call."""

    api_version: Literal["diptych.dev/v1alpha1"]
    kind: Literal["Agent"]
    metadata: Annotated[Metadata, BeforeValidator(without_server_metadata)]
    spec: AgentSpec
    """What the agent is and may do."""
    status: Any = None  # what `kubectl get -o yaml` shows of it means nothing here
