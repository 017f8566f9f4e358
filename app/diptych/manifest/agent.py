"""The `Agent` manifest as typed values: what users write (docs/spec/agent.md), and its rules.

Durations are seconds here. A field that no model has is an error. The text under a field is its
documentation in the cluster (`kubectl explain agent.spec`, by the CRD that `crds/generate.py` makes
of these models) and in docs/reference/manifest.md.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from diptych.manifest.access import AccessSpec
from diptych.manifest.budget import BudgetSpec
from diptych.manifest.chat import ChatSpec
from diptych.manifest.child_metadata import ChildMetadata
from diptych.manifest.cluster import AllowedNamespaces, NetworkSpec
from diptych.manifest.container import ContainerSpec
from diptych.manifest.context import ContextSpec
from diptych.manifest.expose import ExposeSpec
from diptych.manifest.fields import (
    DnsLabel,
    LongList,
    LongText,
    OutputSchema,
    ShortList,
    Text,
)
from diptych.manifest.hooks import HookSpec
from diptych.manifest.key_refs import TextSource
from diptych.manifest.loop import LoopSpec
from diptych.manifest.model import ModelSpec
from diptych.manifest.peers import PeerSpec
from diptych.manifest.pod_template import PodTemplate
from diptych.manifest.policy import PolicyRuleSpec
from diptych.manifest.rules import CelRule, Pattern, UniqueNames, rule_error
from diptych.manifest.sessions import SessionsSpec
from diptych.manifest.settings import NAMESPACE
from diptych.manifest.strict_model import StrictModel
from diptych.manifest.tools import ToolServerSpec

API_VERSION = "diptych.dev/v1alpha1"
KIND = "Agent"
REFERENCES = "diptych.dev/references"
"""The annotation of a manifest that the operator has resolved for a pod. It names the folder with
the mounted files that the manifest refers to: `secrets/<name>/<key>`, `configmaps/<name>/<key>`."""
PLATFORM_POLICY = "diptych.dev/policy"
"""The annotation of such a manifest with the platform's rules for all agents, as JSON. They have
the form of `spec.policy`, and no rule of the agent weakens them."""

_SERVER_METADATA = {
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
}
_REPLICAS_NEED_REDIS = (
    "replicas above 1 need sessions.redis: without it each pod knows its own sessions only"
)
_COST_NEEDS_PRICES = (
    "budget.cost needs model.prices: give input and output, the prices of a million tokens"
)
_HAS_COST = (
    "has(self.budget) && (has(self.budget.cost)"
    " || has(self.budget.perSession) && has(self.budget.perSession.cost)"
    " || has(self.budget.perDay) && has(self.budget.perDay.cost))"
)


class AgentSpec(StrictModel):
    """What an agent is and may do."""

    at_most_one_of = ("instructions", "instructionsFrom")
    cel_rules = (
        CelRule(
            "has(self.model) || has(self.container) && has(self.container.env)"
            " && self.container.env.exists(e, e.name == 'DEBUG_MOCK_RESPONSES')",
            "model is required, unless DEBUG_MOCK_RESPONSES is set in container.env",
        ),
        CelRule(
            "!has(self.replicas) || self.replicas <= 1"
            " || has(self.sessions) && has(self.sessions.redis)",
            _REPLICAS_NEED_REDIS,
        ),
        CelRule(f"!({_HAS_COST}) || has(self.model) && has(self.model.prices)", _COST_NEEDS_PRICES),
    )

    description: Text = ""
    """What the agent is good for. Other agents read it in its agent card to decide when to delegate
    to it."""
    instructions: LongText | None = None
    """The system prompt: who the agent is and how it acts."""
    instructions_from: TextSource | None = None
    """The object that holds the instructions, in place of `instructions`."""
    model: ModelSpec | None = None
    """The model that the agent asks. It is required, unless DEBUG_MOCK_RESPONSES is set in
    container.env."""
    tools: Annotated[
        LongList[ToolServerSpec], UniqueNames("tool servers", lambda t: t.name, "name")
    ] = ()
    """MCP servers whose tools the agent may call."""
    agents: Annotated[
        LongList[PeerSpec],
        UniqueNames(
            "agents",
            lambda a: a.visible_name,
            "(has(x.__as__) ? x.__as__ : has(x.name) ? x.name : '')",
        ),
    ] = ()
    """Agents that this one may delegate to. They may delegate back: a delegation to an agent that
    is on the call path already is refused at run time."""
    chat: ChatSpec = Field(default_factory=ChatSpec)
    """What the callers of the HTTP API may bring."""
    loop: LoopSpec = Field(default_factory=LoopSpec)
    """The bounds of a run."""
    output_schema: OutputSchema | None = None
    """The JSON schema that every answer must fit. A request's own schema comes before it."""
    policy: LongList[PolicyRuleSpec] = ()
    """Which calls are made, denied, or asked about first. The first rule that matches decides, and
    a call that no rule matches is made."""
    hooks: ShortList[HookSpec] = ()
    """Addresses that are asked about calls, steps and answers, in this order."""
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    """How much a run may use, and all runs of a session and of a day. What there is no limit for
    is not limited."""
    context: ContextSpec = Field(default_factory=ContextSpec)
    """How much of a long conversation the model is sent."""
    sessions: SessionsSpec = Field(default_factory=SessionsSpec)
    """Where the runs of one conversation are stored, and how they queue."""
    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """How many pods serve the agent; `kubectl scale` and autoscalers set it. More than 1 need
    sessions.redis."""
    container: ContainerSpec = Field(default_factory=ContainerSpec)
    """What the agent's container is given."""
    pod_template: PodTemplate | None = None
    """Overrides of the pods' template; they are merged last. The platform may have locked some
    fields."""
    expose: ExposeSpec | None = None
    """Under which host name the agent is reached from outside of the cluster; the platform says
    which names agents may take."""
    metadata: ChildMetadata | None = None
    """Labels and annotations of all that is made of the agent, as far as the platform lets agents
    set these keys."""
    network: NetworkSpec | None = None
    """Rules added to the agent's NetworkPolicy."""
    access: AccessSpec = Field(default_factory=AccessSpec)
    """Who may do what to the agent."""
    allowed_namespaces: AllowedNamespaces | None = None
    """The namespaces whose Agents may delegate to this one; its own namespace if absent."""

    @model_validator(mode="after")
    def _check_replicas(self) -> Self:
        if self.budget.has_cost and (self.model is None or self.model.prices is None):
            raise rule_error(_COST_NEEDS_PRICES)
        if self.replicas > 1 and self.sessions.redis is None:
            raise rule_error(_REPLICAS_NEED_REDIS)
        return self


_RULES = TypeAdapter(tuple[PolicyRuleSpec, ...])


class Metadata(StrictModel):
    """The object's name; the rest belongs to Kubernetes, which writes more than users do."""

    name: Annotated[DnsLabel, Pattern("[a-z].*", "must begin with a letter", 63)]
    """The agent's name."""
    namespace: DnsLabel = NAMESPACE
    """The namespace that the agent is in."""
    labels: Any = None
    annotations: Any = None

    @property
    def platform_policy(self) -> tuple[PolicyRuleSpec, ...]:
        """The platform's rules; none if the manifest has not been resolved for a pod.

        Raises `ValueError` if they do not have their form.
        """
        text = self.annotations.get(PLATFORM_POLICY) if isinstance(self.annotations, dict) else None
        return _RULES.validate_json(text) if self.references and isinstance(text, str) else ()

    @property
    def references(self) -> Path | None:
        """The folder of mounted references, if the manifest has been resolved for a pod."""
        is_mapping = isinstance(self.annotations, dict)
        folder = self.annotations.get(REFERENCES) if is_mapping else None
        return Path(folder) if isinstance(folder, str) else None


def _without_server_metadata(value: object) -> object:
    """Leave out what a Kubernetes API server adds to an object's metadata."""
    if not isinstance(value, dict):
        return value
    return {name: inner for name, inner in value.items() if name not in _SERVER_METADATA}


class AgentManifest(StrictModel):
    """An AI agent: a model, its instructions, the tools and the other agents that it may call."""

    api_version: Literal["diptych.dev/v1alpha1"]
    """The version of the manifest's format."""
    kind: Literal["Agent"]
    """The kind of the manifest."""
    metadata: Annotated[Metadata, BeforeValidator(_without_server_metadata)]
    """The agent's name and namespace. Labels and annotations are allowed too."""
    spec: AgentSpec
    """What the agent is and may do."""
    status: Any = None  # `kubectl get -o yaml` writes it; it has no meaning here
