"""The `Agent` manifest as typed values: what users write (docs/spec/agent.md), and its rules.

Durations are seconds here. A field that no model has is an error. The text under a field is its
documentation in the cluster (`kubectl explain agent.spec`, by the CRD that `crds/generate.py` makes
of these models) and in docs/reference/manifest.md.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from diptych.core.context_window import MIN_LIMIT
from diptych.core.run_settings import AnswerMode, OnMaxSteps, RunSettings
from diptych.manifest.access import AccessSpec
from diptych.manifest.budget import BudgetSpec
from diptych.manifest.cluster import (
    AllowedNamespaces,
    ChildMetadata,
    ContainerSpec,
    ExposeSpec,
    NetworkSpec,
    PodTemplate,
)
from diptych.manifest.fields import (
    DnsLabel,
    Duration,
    LongList,
    LongText,
    OneLine,
    OutputSchema,
    ShortList,
    Text,
    TextSource,
    Url,
)
from diptych.manifest.metadata import AS_WRITTEN, Metadata, SharedName
from diptych.manifest.model import ModelSpec
from diptych.manifest.policy import HookSpec, PolicyRuleSpec
from diptych.manifest.rules import (
    Rule,
    StrictModel,
    UniqueNames,
    pattern,
)
from diptych.manifest.schedules import ScheduleSpec, TriggerSpec
from diptych.manifest.sessions import SessionsSpec
from diptych.manifest.settings import DEADLINE, CallerParameter, CallerTools, ChatConfig
from diptych.manifest.tools import ToolServerSpec

_DEFAULTS = RunSettings()


class LoopSpec(StrictModel):
    """The bounds of a run.

    A new field stands here and, under the same name, in `RunSettings`, where a run reads it; then
    `make format` writes CRD and reference. The resolver, the record and the Python API take all
    fields as they are (but `deadline`, which is no setting of the loop).
    """

    max_steps: Annotated[int, Field(ge=1, le=100)] = _DEFAULTS.max_steps
    """The most steps of a run. In each step the model asks for calls, and gets their results."""
    on_max_steps: OnMaxSteps = _DEFAULTS.on_max_steps
    """What happens after the last step: `stop` ends the run with a text that says so, `answer` lets
    the model answer from the results so far."""
    answer_mode: AnswerMode = _DEFAULTS.answer_mode
    """How the answer is made: `separate` asks the model for it in a request of its own; with
    `direct` a reply that calls nothing is the answer, which saves a request."""
    max_calls_per_step: Annotated[int, Field(ge=1, le=64)] = _DEFAULTS.max_calls_per_step
    """The most calls that one reply of the model may ask for; the same call asked for twice counts
    once. A reply that asks for more is refused, and nothing of it runs."""
    max_parallel_calls: Annotated[int, Field(ge=1, le=64)] = _DEFAULTS.max_parallel_calls
    """The most calls of one step that run at the same time."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = _DEFAULTS.max_retries
    """How many replies in a row that cannot be read the model may correct. After the next one, the
    agent answers from the results so far."""
    answer_repairs: Annotated[int, Field(ge=0, le=10)] = _DEFAULTS.answer_repairs
    """How often the model may correct an answer that does not fit `outputSchema`, or the schema of
    the request."""
    memory_context_limit: Annotated[int, Field(ge=0, le=100)] = _DEFAULTS.memory_context_limit
    """The most messages of the conversation that a delegation carries with its task."""
    deadline: Duration = DEADLINE
    """How long a run may take. The time that it waits in its session's queue does not count."""


class ContextSpec(StrictModel):
    """How much of a long conversation the model is sent."""

    max_tokens: Annotated[int, Field(ge=MIN_LIMIT, le=100_000_000)] | None = None
    """The model's context window in tokens, the reply included. Long results are sent as excerpts
    and old messages as a summary, so that a request stays below 75 % of it. If absent, the agent
    learns the window when the endpoint refuses a request as too long."""


_CHAT = ChatConfig()
_ORIGIN = r"\*|https?://([a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?"

WebOrigin: TypeAlias = Annotated[
    str,
    pattern(
        _ORIGIN,
        'must be "*" or an origin such as https://app.example.com, in lower case, without a path',
        300,
    ),
]


WebhookHost: TypeAlias = Annotated[
    str, pattern(r"[a-z0-9._-]{1,253}|[0-9a-f:.]{2,45}", "must be a host in lower case", 253)
]


class ChatSpec(StrictModel):
    """What the callers of the HTTP API may bring with a chat, and from which web pages."""

    caller_system: Literal["quote", "off"] = _CHAT.caller_system
    """What becomes of a caller's system messages: `quote` adds them to the agent's own system
    prompt, quoted and marked as subordinate to it; `off` leaves them out."""
    caller_tools: CallerTools = _CHAT.caller_tools
    """What becomes of a chat that brings tools of its own: `refuse` answers with an error, `ignore`
    goes on without them and says so in a header, `pass` offers them to the model beside the
    agent's own: a call of one ends the reply, and the next request brings its result. Tools that
    the caller forces are none of these: they ask for an answer of their form."""
    allow_parameters: ShortList[CallerParameter] = _CHAT.allow_parameters
    """The parameters of a chat that reach the model, such as `temperature`, in place of those in
    model.parameters. `max_tokens` stands for `max_completion_tokens` too. Others have no effect,
    and a header names them."""
    cors_origins: ShortList[WebOrigin] = _CHAT.cors_origins
    """The origins of web pages whose scripts may use the paths under `/v1/` (CORS); "*" means all.
    An agent on loopback refuses pages of other hosts all the same."""
    webhook_hosts: ShortList[WebhookHost] = _CHAT.webhook_hosts
    """Hosts inside the network, such as `inbox.team.svc`, to which callers may have push
    notifications of A2A sent: their addresses may be private, and their URLs begin with http://.
    Public hosts need no entry, but https://."""


class PeerSpec(StrictModel):
    """An agent that this one may delegate to: an Agent of the cluster by name, or any by URL."""

    exactly_one_of = ("name", "url")
    rules = (
        Rule(
            "!has(self.url) || has(self.__as__)",
            'a url needs "as": the name that the model knows the agent by',
            lambda spec: not spec.url or spec.as_,
        ),
        Rule(
            "!has(self.url) || !has(self.__namespace__)",
            "a url has no namespace; remove it, or give a name",
            lambda spec: not (spec.url and spec.namespace),
        ),
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

    @property
    def visible_name(self) -> str:
        return self.as_ or self.name or ""


KIND = "Agent"
REFERENCES = "diptych.dev/references"
"""The annotation of a manifest that the operator has resolved for a pod. It names the folder with
the mounted files that the manifest refers to: `secrets/<name>/<key>`, `configmaps/<name>/<key>`."""
PLATFORM_POLICY = "diptych.dev/policy"
"""The annotation of such a manifest with the platform's rules for all agents, as JSON. They have
the form of `spec.policy`, and no rule of the agent weakens them."""

_HAS_COST = (
    "has(self.budget) && (has(self.budget.cost)"
    " || has(self.budget.perSession) && has(self.budget.perSession.cost)"
    " || has(self.budget.perDay) && has(self.budget.perDay.cost))"
)


class HostingSpec(StrictModel):
    """The pods that the agent runs in, if they are not its own."""

    pool: SharedName
    """The AgentPool of the agent's namespace that it runs in."""


_MOCK_ONLY = (
    "!has(self.container.image) && !has(self.container.imagePullPolicy)"
    " && !has(self.container.envFrom) && !has(self.container.resources)"
    " && (!has(self.container.env)"
    " || self.container.env.all(e, e.name == 'DEBUG_MOCK_RESPONSES'))"
)


def _needs_own_pods(spec: "AgentSpec") -> bool:
    return (
        spec.pod_template is not None
        or "replicas" in spec.model_fields_set
        or not spec.container.model_fields_set <= {"env"}
        or any(variable.name != "DEBUG_MOCK_RESPONSES" for variable in spec.container.env)
        or any(tool.command for tool in spec.tools)
    )


class AgentSpec(StrictModel):
    """What an agent is and may do."""

    at_most_one_of = ("instructions", "instructionsFrom")
    rules = (
        Rule(  # a script in the environment of a process replaces a model, too
            "has(self.model) || has(self.container) && has(self.container.env)"
            " && self.container.env.exists(e, e.name == 'DEBUG_MOCK_RESPONSES')",
            "model is required, unless DEBUG_MOCK_RESPONSES is set in container.env",
        ),
        Rule(
            "!has(self.replicas) || self.replicas <= 1"
            " || has(self.sessions) && has(self.sessions.redis)",
            "replicas above 1 need sessions.redis: without it each pod knows its own sessions only",
            lambda spec: spec.replicas <= 1 or spec.sessions.redis,
        ),
        Rule(
            f"!({_HAS_COST}) || has(self.model)"
            " && (has(self.model.prices) || has(self.model.apiRef))",
            "budget.cost needs model.prices: give input and output, the prices of a million tokens",
            lambda spec: (
                not spec.budget.has_cost
                or (spec.model and (spec.model.prices or spec.model.api_ref))
            ),
        ),
        Rule(
            "!has(self.hosting) || !has(self.podTemplate) && !has(self.replicas)"
            f" && (!has(self.container) || {_MOCK_ONLY})"
            " && (!has(self.tools) || self.tools.all(t, !has(t.command)))",
            "hosting.pool excludes what needs pods of the agent's own: podTemplate, replicas, "
            "tools with command, and of container all but DEBUG_MOCK_RESPONSES in env",
            lambda spec: spec.hosting is None or not _needs_own_pods(spec),
        ),
    )

    description: Text = ""
    """What the agent is good for. Other agents read it in its agent card to decide when to delegate
    to it."""
    examples: Annotated[tuple[OneLine, ...], Field(strict=False, max_length=3)] = ()
    """Questions to try. The agent's page offers them."""
    instructions: LongText | None = None
    """The system prompt: who the agent is and how it acts."""
    instructions_from: TextSource | None = None
    """The object that holds the instructions, in place of `instructions`."""
    model: ModelSpec | None = None
    """The model that the agent asks. It is required, unless DEBUG_MOCK_RESPONSES is set in
    container.env."""
    tools: Annotated[LongList[ToolServerSpec], UniqueNames("tool servers", lambda t: t.name)] = ()
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
    schedules: Annotated[ShortList[ScheduleSpec], UniqueNames("schedules", lambda s: s.name)] = ()
    """Messages that start runs at certain times."""
    triggers: Annotated[ShortList[TriggerSpec], UniqueNames("triggers", lambda t: t.name)] = ()
    """Addresses at which deliveries of other programs (webhooks) start runs."""
    hosting: HostingSpec | None = None
    """The pods that it runs in; pods of its own if absent."""
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


_RULES = TypeAdapter(tuple[PolicyRuleSpec, ...])


class AgentMetadata(Metadata):
    """The object's name; the rest belongs to Kubernetes, which writes more than users do."""

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


class AgentManifest(StrictModel):
    """An AI agent: a model, its instructions, the tools and the other agents that it may call."""

    api_version: Literal["diptych.dev/v1alpha1"]
    """The version of the manifest's format."""
    kind: Literal["Agent"]
    """The kind of the manifest."""
    metadata: Annotated[AgentMetadata, AS_WRITTEN]
    """The agent's name and namespace. Labels and annotations are allowed too."""
    spec: AgentSpec
    """What the agent is and may do."""
    status: Any = None  # `kubectl get -o yaml` writes it; it has no meaning here
