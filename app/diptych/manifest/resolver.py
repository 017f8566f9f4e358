"""Makes an `AgentConfig` of a manifest, whose references it follows."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from diptych.access.certificates import ca_problem
from diptych.access.limits import Limits
from diptych.core.budget import Budget, Prices, SharedBudgets
from diptych.core.run_settings import RunSettings
from diptych.manifest import AgentManifest, McpServerManifest, ModelApiManifest
from diptych.manifest.access import AccessSpec, IssuerSpec, access_grants, unknown_keys
from diptych.manifest.agent import PLATFORM_POLICY, AgentSpec, PeerSpec
from diptych.manifest.budget import Limited, PricesSpec, SharedBudgetSpec
from diptych.manifest.cluster import ContainerSpec
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.environment import MOCK, PUBLIC_URL, TOKEN_KEY
from diptych.manifest.fields import url_problem
from diptych.manifest.model import ModelSpec
from diptych.manifest.model_references import ModelReferences
from diptych.manifest.policy import HookSpec, PolicyRuleSpec
from diptych.manifest.references import ReferenceTargets
from diptych.manifest.rules import fields_of
from diptych.manifest.schedules import ScheduleSpec, TriggerSpec
from diptych.manifest.secret_sources import constant_value
from diptych.manifest.sessions import SessionsSpec
from diptych.manifest.settings import (
    ALL_TOOLS,
    AccessConfig,
    AgentConfig,
    ChatConfig,
    IssuerConfig,
    ModelConfig,
    PeerConfig,
    ScheduleConfig,
    StoreConfig,
    ToolServerConfig,
    TriggerConfig,
    sessions_prefix,
)
from diptych.manifest.tool_references import ToolReferences
from diptych.manifest.tools import ToolServerRef, ToolServerSpec
from diptych.manifest.validation import raise_problems
from diptych.net.redaction import SECRETS
from diptych.policy.rules import LayeredPolicy, Policy, Rule
from diptych.policy.unmatched import NamedCalls, is_glob
from diptych.ports import ValueProvider
from diptych.runs.definition import AgentDefinition, HookConfig
from diptych_cel.expressions import check_expression
from diptych_cron import Cron

MIN_TOKEN_KEY = 32  # characters
_CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_REPLY_FIELDS = frozenset({"content", "tool_calls", "error"})  # one of them is in each reply
_ENV: FieldPath = ("spec", "container", "env")
_ENV_FROM: FieldPath = ("spec", "container", "envFrom")


def resolve_manifest(
    manifest: AgentManifest, location: SourceLocation, targets: ReferenceTargets
) -> AgentConfig:
    """Resolve a whole manifest. Raises `ConfigError` with a line for each problem."""
    resolver = _Resolver(manifest, location, targets)
    config = resolver.agent()
    raise_problems(resolver.problems)
    return config


def resolve_api(
    manifest: ModelApiManifest, location: SourceLocation, targets: ReferenceTargets
) -> ModelConfig:
    """Resolve a ModelAPI, with a model to try it with: its default, or the first that it names.

    The name is empty if there is none. Raises `ConfigError` with a line for each problem.
    """
    spec, metadata = manifest.spec, manifest.metadata
    references = ModelReferences(metadata.namespace, location, targets)
    plain = (name for name in spec.models if not is_glob(name))
    name = spec.default or next(plain, None)
    asked = ModelSpec.model_validate({"apiRef": {"name": metadata.name}, "name": name})
    config = references.model(asked, is_required=True)
    raise_problems(references.problems)
    return replace(config, fallbacks=())


def resolve_server(
    manifest: McpServerManifest, location: SourceLocation, targets: ReferenceTargets
) -> ToolServerConfig:
    """Resolve an MCPServer. Raises `ConfigError` with a line for each problem."""
    metadata = manifest.metadata
    references = ToolReferences(metadata.namespace, location, targets)
    name = metadata.name
    server = references.tool(("spec",), ToolServerSpec(name=name, ref=ToolServerRef(name=name)))
    raise_problems(references.problems)
    return server


class _Resolver(ToolReferences, ModelReferences):
    """Makes the parts of one agent's configuration; problems collect as for its references."""

    def __init__(
        self, manifest: AgentManifest, location: SourceLocation, targets: ReferenceTargets
    ) -> None:
        metadata = manifest.metadata
        super().__init__(metadata.namespace, location, targets, metadata.references)
        self._manifest = manifest

    def agent(self) -> AgentConfig:
        metadata, spec = self._manifest.metadata, self._manifest.spec
        for path, problem in self.targets.shared.problems(self._manifest):
            self.add_problem(path, problem)
        container = spec.container
        env = self.variables(("spec", "container"), container.env, container.env_from)
        mock, mock_source = self._mock(env)
        if spec.model is None and mock is None:
            self.add_problem(("spec", "model"), self._without_model())
        read_instructions = self.text_of_source(
            ("spec", "instructionsFrom"), spec.instructions_from
        )
        wall_clock = spec.budget.wall_clock
        definition = AgentDefinition(
            (read_instructions and read_instructions()) or spec.instructions or "",
            _run_settings(spec, self.prices(spec.model) if spec.model else None),
            min(spec.loop.deadline, wall_clock or spec.loop.deadline),
            read_instructions=read_instructions,
            context_max_tokens=spec.context.max_tokens,
            when_busy=spec.sessions.when_busy,
        )
        return AgentConfig(
            name=metadata.name,
            namespace=metadata.namespace,
            description=spec.description,
            examples=spec.examples,
            definition=definition,
            model=self.model(spec.model, is_required=mock is None) if spec.model else None,
            mock_responses=mock,
            mock_source=mock_source,
            tools=tuple(self.tool(("spec", "tools", i), tool) for i, tool in enumerate(spec.tools)),
            agents=tuple(self._peer(("spec", "agents", i), p) for i, p in enumerate(spec.agents)),
            public_url=self._public_url(env),
            token_keys=self._token_keys(env),
            exposed_url=spec.expose.url if spec.expose else None,
            store=self._store(spec.sessions),
            hooks=tuple(self._hook(("spec", "hooks", i), h) for i, h in enumerate(spec.hooks)),
            access=self._access(spec.access),
            chat=ChatConfig(**fields_of(spec.chat)),
            mounted_keys=self.mounted_keys,
            policy=self._policy(),
            named_calls=tuple(named_calls(spec)),
            budgets=SharedBudgets(_shared(spec.budget.per_session), _shared(spec.budget.per_day)),
            schedules=() if self.is_mounted else tuple(map(_schedule, spec.schedules)),
            triggers=tuple(
                self._trigger(("spec", "triggers", n), t) for n, t in enumerate(spec.triggers)
            ),
        )

    def _mock(self, env: Mapping[str, ValueProvider]) -> tuple[str | None, str]:
        """Return the script, if any, and where it is; an empty one in a manifest means none."""
        targets, name, source = self.targets, self._manifest.metadata.name, MOCK
        is_asked = targets.asked in {None, name}
        text = targets.environ.get(MOCK, "")
        if MOCK in env:
            text, is_asked = env[MOCK]() or "", True
            path = variable_path(self._manifest.spec.container, MOCK)
            source = f"{self.locate(path)}: {MOCK}"
        elif _scripts_by_agent(text):
            source = f"{name}: {MOCK}"
        script = script_of(name, text, is_asked=is_asked)
        return (script, source) if script.strip() else (None, "")

    def _without_model(self) -> str:
        name = self._manifest.metadata.name
        if not self.targets.environ.get(MOCK, "").strip():
            return f"is required, unless {MOCK} is set"
        return f'is required, as {MOCK} has no script for {name}: {{"{name}": […], …}}'

    def _public_url(self, env: Mapping[str, ValueProvider]) -> str | None:
        url = env[PUBLIC_URL]() if PUBLIC_URL in env else None
        if not url:
            return self.targets.public_url
        if problem := url_problem(url):
            path = variable_path(self._manifest.spec.container, PUBLIC_URL)
            self.add_problem(path, f"{PUBLIC_URL} {problem}")
        return url.rstrip("/")

    def _token_keys(self, env: Mapping[str, ValueProvider]) -> tuple[str, ...]:
        text = (env[TOKEN_KEY]() if TOKEN_KEY in env else None) or ""
        keys = [key.strip() for key in (text or self.targets.environ.get(TOKEN_KEY, "")).split(",")]
        keys = list(filter(None, keys))
        for key in keys:
            SECRETS.remember(key)
        if any(len(key) < MIN_TOKEN_KEY for key in keys):
            path = variable_path(self._manifest.spec.container, TOKEN_KEY) if text else ("spec",)
            self.add_problem(
                path,
                f"{TOKEN_KEY} must be random text of {MIN_TOKEN_KEY} characters or more; "
                "`openssl rand -hex 32` prints one",
            )
        return tuple(keys)

    def _peer(self, path: FieldPath, peer: PeerSpec) -> PeerConfig:
        url = peer.url or self.agent_url(path, peer)
        for card in _CARD_PATHS:
            url = url.removesuffix(card)
        is_named = peer.url is None
        return PeerConfig(
            peer.visible_name,
            url.rstrip("/"),
            share_context=is_named if peer.share_context is None else peer.share_context,
            token=self.token(peer) if is_named else None,
        )

    def _hook(self, path: FieldPath, hook: HookSpec) -> HookConfig:
        key, place = hook.signing_key, (*path, "signingKey")
        read = self.key(place, "Secret", key.secret_key_ref) if key else None
        headers = self.values((*path, "headers"), hook.headers)
        return HookConfig(hook.at, hook.url, hook.timeout, headers, read)

    def _trigger(self, path: FieldPath, trigger: TriggerSpec) -> TriggerConfig:
        secret, place = trigger.secret, (*path, "secret")
        when, session = trigger.when, trigger.session
        return TriggerConfig(
            trigger.name,
            trigger.signature,
            self.key(place, "Secret", secret.secret_key_ref) if secret else None,
            check_expression(trigger.message, "delivery", "string"),
            check_expression(when, "delivery") if when else None,
            check_expression(session, "delivery", "name") if session else None,
        )

    def _access(self, access: AccessSpec) -> AccessConfig:
        path: FieldPath = ("spec", "access")
        for place, problem in unknown_keys(access):
            self.add_problem(place, problem)
        return AccessConfig(
            access.mode,
            {
                key.name: self.key((*path, "keys", n), "Secret", key.secret_key_ref)
                for n, key in enumerate(access.keys)
            },
            tuple(
                self._issuer((*path, "issuers", n), issuer)
                for n, issuer in enumerate(access.issuers)
            ),
            access_grants(access, self._manifest.metadata.namespace),
            Limits(access.limits.runs_at_once, access.limits.runs_per_minute),
            self.platform_file(),
            access.approve_own,
        )

    def _issuer(self, path: FieldPath, issuer: IssuerSpec) -> IssuerConfig:
        """Make an issuer's configuration.

        In a pod the certificates may come later, and are checked when the issuer is asked.
        """
        ca = self.text_of_source((*path, "caFrom"), issuer.ca_from)
        if issuer.ca is not None:
            ca = constant_value(issuer.ca)
        text = None if ca is None or self.is_mounted else ca()
        if text is not None and (problem := ca_problem(text)):
            self.add_problem((*path, "ca" if issuer.ca else "caFrom"), problem)
        return IssuerConfig(
            issuer.url,
            issuer.audience,
            issuer.user_claim,
            issuer.groups_claim,
            tuple(issuer.jwks.keys) if issuer.jwks else None,
            ca=ca,
        )

    def _store(self, sessions: SessionsSpec) -> StoreConfig | None:
        redis, metadata = sessions.redis, self._manifest.metadata
        if redis is None:
            return None
        url, source, path = self.redis(("spec", "sessions", "redis"), redis)
        prefix = sessions_prefix(metadata.namespace, metadata.name, sessions.adopt)
        setting = "" if self.is_mounted else self.describe(path)
        return StoreConfig(url, sessions.retention, prefix, setting, source)

    def _policy(self) -> Policy:
        """Make the policy of the manifest's rules, and of its platform's."""
        own = Policy(tuple(map(_rule, self._manifest.spec.policy)))
        try:
            platform = self._manifest.metadata.platform_policy
        except ValueError as error:
            problem = f"{PLATFORM_POLICY} is not what this version understands: {error}"
            self.add_problem(("metadata", "annotations"), " ".join(problem.split()))
            return own
        if not platform:
            return own
        return LayeredPolicy(Policy(tuple(map(_rule, platform)), "platform"), own)


def _schedule(spec: ScheduleSpec) -> ScheduleConfig:
    cron = Cron.parse(spec.cron, spec.time_zone)
    return ScheduleConfig(spec.name, cron, spec.message, spec.session, spec.missed == "once")


def _run_settings(spec: AgentSpec, prices: PricesSpec | None) -> RunSettings:
    model = spec.model
    of_model: dict[str, Any] = {"action_format": model.action_format} if model else {}
    return RunSettings(
        **fields_of(spec.loop, but="deadline"),
        **of_model,
        budget=_budget(spec.budget),  # its wall clock is a deadline
        prices=Prices(prices.input, prices.output) if prices else None,
        queue_mode=spec.sessions.queue_mode,
        output_schema=spec.output_schema,
    )


def _shared(spec: SharedBudgetSpec) -> Budget:
    ms = None if spec.wall_clock is None else round(spec.wall_clock * 1000)
    return replace(_budget(spec), wall_clock=ms)


def _budget(spec: Limited) -> Budget:
    return Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps)


def _rule(rule: PolicyRuleSpec) -> Rule:
    match = rule.match
    return Rule(
        match.about,
        match.pattern,
        rule.do,
        check_expression(rule.when, match.about) if rule.when is not None else None,
        rule.reason,
        rule.expires,
        is_dry_run=rule.mode == "dryRun",
        repeat=rule.repeat,
    )


def named_calls(spec: AgentSpec) -> Iterator[NamedCalls]:
    """Find all fields that name tools or agents. The platform's rules are for all Agents alike."""
    for n, rule in enumerate(spec.policy):
        about, pattern = rule.match.about, rule.match.pattern
        if (pattern,) != ALL_TOOLS:
            yield NamedCalls(f"spec.policy[{n}].match.{about}", about, pattern)
    for n, server in enumerate(spec.tools):
        allowed = [(f"allow[{m}]", pattern) for m, pattern in enumerate(server.allow)]
        changed = [(f"overrides[{m}].tool", each.tool) for m, each in enumerate(server.overrides)]
        for field, pattern in (*allowed, *changed):
            if (pattern,) != ALL_TOOLS:
                yield NamedCalls(f"spec.tools[{n}].{field}", "tool", pattern, server.name)


def variable_path(container: ContainerSpec, name: str) -> FieldPath:
    """Return the path of a variable in `env`, or of `envFrom` if it comes from there."""
    names = [variable.name for variable in container.env]
    return (*_ENV, names.index(name)) if name in names else _ENV_FROM


def script_of(agent: str, text: str, *, is_asked: bool) -> str:
    """Return an agent's script in DEBUG_MOCK_RESPONSES (loop.md §10), or "".

    It is its own of several, or the only one if the agent is the one that is asked.
    """
    scripts = _scripts_by_agent(text)
    if not scripts:
        return text if is_asked else ""
    if agent not in scripts:
        return ""
    replies = scripts[agent]
    return orjson.dumps(replies if isinstance(replies, list) else [replies]).decode()


def _scripts_by_agent(text: str) -> Mapping[str, Any]:
    """Return the scripts of several agents, by name; empty if the text is one script."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        scripts = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}  # `check_mock_scripts` reports it
    return scripts if _REPLY_FIELDS.isdisjoint(scripts) else {}
