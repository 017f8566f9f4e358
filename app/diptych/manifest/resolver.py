"""Makes an `AgentConfig` of a manifest, whose references it follows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from diptych.access.certificates import ca_problem
from diptych.access.limits import Limits
from diptych.core.budget import Budget, Prices, SharedBudgets
from diptych.core.run_settings import RunSettings
from diptych.manifest import AgentManifest
from diptych.manifest.access import AccessSpec, IssuerSpec, access_grants, unknown_keys
from diptych.manifest.agent import PLATFORM_POLICY, AgentSpec, PeerSpec
from diptych.manifest.budget import BudgetSpec, SharedBudgetSpec
from diptych.manifest.cluster import ContainerSpec, Variable, VariablesFrom
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.environment import MOCK, PUBLIC_URL
from diptych.manifest.fields import Header, url_problem
from diptych.manifest.model import FallbackSpec, ModelSpec
from diptych.manifest.policy import HookSpec, PolicyRuleSpec
from diptych.manifest.references import References, ReferenceTargets, agent_base_url
from diptych.manifest.rules import StrictModel
from diptych.manifest.secret_sources import Kind, constant_value
from diptych.manifest.sessions import SessionsSpec
from diptych.manifest.settings import (
    ALL_TOOLS,
    AccessConfig,
    AgentConfig,
    ChatConfig,
    IssuerConfig,
    ModelConfig,
    OverrideConfig,
    PeerConfig,
    StoreConfig,
    TimeoutConfig,
    ToolServerConfig,
    sessions_prefix,
)
from diptych.manifest.tools import ToolServerSpec
from diptych.manifest.validation import raise_problems
from diptych.net.redaction import SECRETS
from diptych.policy.layers import LayeredPolicy
from diptych.policy.rule_groups import Rule
from diptych.policy.rules import Policy
from diptych.policy.unmatched import NamedCalls
from diptych.ports import ValueProvider
from diptych.runs.definition import AgentDefinition, HookConfig
from diptych_cel.expressions import About, check_expression


def resolve_manifest(
    manifest: AgentManifest, location: SourceLocation, targets: ReferenceTargets
) -> AgentConfig:
    """Resolve a whole manifest. Raises `ConfigError` with a line for each problem."""
    resolver = _Resolver(manifest, References(manifest, location, targets))
    config = resolver.agent()
    raise_problems(resolver.references.problems)
    return config


class _Resolver:
    """Makes the parts of one agent's configuration; problems collect in its references."""

    def __init__(self, manifest: AgentManifest, references: References) -> None:
        self.references = references
        self._manifest = manifest

    def agent(self) -> AgentConfig:
        metadata, spec = self._manifest.metadata, self._manifest.spec
        env = container_env(spec.container, self.references)
        mock, mock_source = self._mock(env)
        if spec.model is None and mock is None:
            self.references.add_problem(("spec", "model"), self._without_model())
        instructions_from = self.references.text_of_source(
            ("spec", "instructionsFrom"), spec.instructions_from
        )
        return AgentConfig(
            name=metadata.name,
            namespace=metadata.namespace,
            description=spec.description,
            definition=AgentDefinition(
                (instructions_from and instructions_from()) or spec.instructions or "",
                _run_settings(spec),
                run_deadline(spec.loop.deadline, spec.budget),
                read_instructions=instructions_from,
                context_max_tokens=spec.context.max_tokens,
                when_busy=spec.sessions.when_busy,
            ),
            model=self._model(spec.model, is_mocked=mock is not None) if spec.model else None,
            mock_responses=mock,
            mock_source=mock_source,
            tools=tuple(
                self._tool(("spec", "tools", i), tool) for i, tool in enumerate(spec.tools)
            ),
            agents=tuple(self._peer(("spec", "agents", i), p) for i, p in enumerate(spec.agents)),
            public_url=self._public_url(env),
            exposed_url=spec.expose.url if spec.expose else None,
            env=env,
            store=self._store(spec.sessions),
            hooks=tuple(self._hook(("spec", "hooks", i), h) for i, h in enumerate(spec.hooks)),
            access=self._access(spec.access),
            chat=ChatConfig(**_fields_of(spec.chat)),
            mounted_keys=self.references.mounted_keys,
            policy=call_policy(self._manifest, self.references),
            named_calls=tuple(named_calls(spec)),
            budgets=shared_budgets(spec.budget),
        )

    def _mock(self, env: Mapping[str, ValueProvider]) -> tuple[str | None, str]:
        """Give the script, if any, and where it is; an empty one in a manifest means none."""
        targets, name, source = self.references.targets, self._manifest.metadata.name, MOCK
        is_asked = targets.asked in {None, name}
        text = targets.environ.get(MOCK, "")
        if MOCK in env:
            text, is_asked = env[MOCK]() or "", True
            path = variable_path(self._manifest.spec.container, MOCK)
            source = f"{self.references.describe(path)}: {MOCK}"
        elif scripts_by_agent(text):
            source = f"{name}: {MOCK}"
        script = script_of(name, text, is_asked=is_asked)
        return (script, source) if script.strip() else (None, "")

    def _without_model(self) -> str:
        name = self._manifest.metadata.name
        if not self.references.targets.environ.get(MOCK, "").strip():
            return f"is required, unless {MOCK} is set"
        return f'is required, as {MOCK} has no script for {name}: {{"{name}": […], …}}'

    def _public_url(self, env: Mapping[str, ValueProvider]) -> str | None:
        url = env[PUBLIC_URL]() if PUBLIC_URL in env else None
        if not url:
            return self.references.targets.public_url
        if problem := url_problem(url):
            path = variable_path(self._manifest.spec.container, PUBLIC_URL)
            self.references.add_problem(path, f"{PUBLIC_URL} {problem}")
        return url.rstrip("/")

    def _model(self, model: ModelSpec, *, is_mocked: bool) -> ModelConfig:
        path: FieldPath = ("spec", "model")
        timeouts = TimeoutConfig(**_fields_of(model.timeouts))

        def endpoint(path: FieldPath, spec: ModelSpec | FallbackSpec) -> ModelConfig:
            api_key = None
            if spec.api_key:
                place, ref = (*path, "apiKey"), spec.api_key.secret_key_ref
                api_key = self.references.key(place, "Secret", ref, is_required=not is_mocked)
            return ModelConfig(
                name=spec.name,
                endpoint=spec.endpoint.rstrip("/"),
                api_key=api_key,
                headers=self._headers((*path, "headers"), spec.headers, is_required=not is_mocked),
                timeouts=timeouts,
                **_fields_of(spec.parameters or model.parameters),
            )

        fallbacks = tuple(
            endpoint((*path, "fallbacks", index), spec)
            for index, spec in enumerate(model.fallbacks)
        )
        return replace(endpoint(path, model), fallbacks=fallbacks, inputs=model.inputs)

    def _tool(self, path: FieldPath, tool: ToolServerSpec) -> ToolServerConfig:
        ref = tool.service_ref
        return ToolServerConfig(
            name=tool.name,
            url=self.references.service_url((*path, "serviceRef"), ref) if ref else tool.url,
            command=tool.command or (),
            env=self._tool_env((*path, "env"), tool),
            allow=tool.allow,
            headers=self._headers((*path, "headers"), tool.headers),
            timeout=tool.timeout,
            overrides=tuple(OverrideConfig(**_fields_of(override)) for override in tool.overrides),
            pins={pin.tool: pin.digest for pin in tool.pin},
        )

    def _tool_env(self, path: FieldPath, tool: ToolServerSpec) -> Mapping[str, ValueProvider | str]:
        return {
            variable.name: self.references.key(
                (*path, index, "valueFrom"), "Secret", variable.value_from.secret_key_ref
            )
            if variable.value_from
            else variable.value or ""
            for index, variable in enumerate(tool.env)
        }

    def _headers(
        self, path: FieldPath, headers: Sequence[Header], *, is_required: bool = True
    ) -> Mapping[str, ValueProvider]:
        return {
            header.name: self.references.key(
                (*path, index, "valueFrom"),
                "Secret",
                header.value_from.secret_key_ref,
                is_required=is_required,
            )
            if header.value_from
            else constant_value(header.value or "")
            for index, header in enumerate(headers)
        }

    def _peer(self, path: FieldPath, peer: PeerSpec) -> PeerConfig:
        if peer.url is not None:
            return PeerConfig(
                peer.visible_name,
                agent_base_url(peer.url),
                share_context=bool(peer.share_context),
            )
        url = agent_base_url(self.references.agent_url(path, peer))
        namespace = peer.namespace or self._manifest.metadata.namespace
        return PeerConfig(
            peer.visible_name,
            url,
            share_context=peer.share_context is not False,
            token=self.references.token(namespace, peer.name or ""),
        )

    def _hook(self, path: FieldPath, hook: HookSpec) -> HookConfig:
        key, place = hook.signing_key, (*path, "signingKey")
        read = self.references.key(place, "Secret", key.secret_key_ref) if key else None
        headers = self._headers((*path, "headers"), hook.headers)
        return HookConfig(hook.at, hook.url, hook.timeout, headers, read)

    def _access(self, access: AccessSpec) -> AccessConfig:
        path: FieldPath = ("spec", "access", "keys")
        keys = {
            key.name: self.references.key((*path, n), "Secret", key.secret_key_ref)
            for n, key in enumerate(access.keys)
        }
        namespace = self._manifest.metadata.namespace
        for place, problem in unknown_keys(access):
            self.references.add_problem(place, problem)
        return AccessConfig(
            access.mode,
            keys,
            tuple(
                issuer_config(self.references, n, issuer) for n, issuer in enumerate(access.issuers)
            ),
            access_grants(access, namespace),
            Limits(access.limits.runs_at_once, access.limits.runs_per_minute),
            self.references.platform_file(),
            access.approve_own,
        )

    def _store(self, sessions: SessionsSpec) -> StoreConfig | None:
        redis, metadata = sessions.redis, self._manifest.metadata
        if redis is None:
            return None
        path: FieldPath = ("spec", "sessions", "redis")
        if redis.url_from:
            path = (*path, "urlFrom")
            url = self.references.key(path, "Secret", redis.url_from.secret_key_ref)
        else:
            path = (*path, "serviceRef")
            url = constant_value(self.references.redis_url(path))
        prefix = sessions_prefix(metadata.namespace, metadata.name, sessions.adopt)
        setting = "" if self.references.is_mounted else self.references.describe(path)
        return StoreConfig(url, sessions.retention, prefix, setting)


def _run_settings(spec: AgentSpec) -> RunSettings:
    of_model: dict[str, Any] = {"action_format": spec.model.action_format} if spec.model else {}
    return RunSettings(
        **_fields_of(spec.loop, but="deadline"),
        **of_model,
        **budget_fields(spec.budget, spec.model),
        queue_mode=spec.sessions.queue_mode,
        output_schema=spec.output_schema,
    )


def _fields_of(spec: StrictModel, *, but: str = "") -> dict[str, Any]:
    """Give the values of a part of the manifest, for a class with fields of the same names.

    The class refuses a name that it does not have: a field of the manifest is never dropped.
    """
    return {name: getattr(spec, name) for name in type(spec).model_fields if name != but}


def budget_fields(spec: BudgetSpec, model: ModelSpec | None) -> dict[str, Any]:
    """Give the budget of one run, and the prices, as `RunSettings` has them.

    Its wall clock is a deadline (`run_deadline`).
    """
    budget = Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps)
    given = model and model.prices
    return {"budget": budget, "prices": Prices(given.input, given.output) if given else None}


def run_deadline(deadline: float, spec: BudgetSpec) -> float:
    """Give the seconds that a run may take."""
    return deadline if spec.wall_clock is None else min(deadline, spec.wall_clock)


def shared_budgets(spec: BudgetSpec) -> SharedBudgets:
    """Give the budgets that runs share."""
    return SharedBudgets(_shared(spec.per_session), _shared(spec.per_day))


def _shared(spec: SharedBudgetSpec) -> Budget:
    ms = None if spec.wall_clock is None else round(spec.wall_clock * 1000)
    return Budget(spec.tokens, spec.cost, spec.model_calls, spec.tool_calls, spec.steps, ms)


PUBLIC_VARIABLES = frozenset({MOCK, PUBLIC_URL})
"""What is told to whoever asks, even if it comes from a Secret."""

_ENV: FieldPath = ("spec", "container", "env")
_ENV_FROM: FieldPath = ("spec", "container", "envFrom")


def container_env(container: ContainerSpec, references: References) -> dict[str, ValueProvider]:
    """Give the container's variables; `env` counts before `envFrom`, as in Kubernetes."""
    env: dict[str, ValueProvider] = {}
    for index, source in enumerate(container.env_from):
        env |= _variables(source, (*_ENV_FROM, index), references)
    for index, variable in enumerate(container.env):
        env[variable.name] = _variable(variable, (*_ENV, index), references)
    return env


def variable_path(container: ContainerSpec, name: str) -> FieldPath:
    """Give the path of a variable in `env`, or of `envFrom` if it comes from there."""
    names = [variable.name for variable in container.env]
    return (*_ENV, names.index(name)) if name in names else _ENV_FROM


def _variables(
    source: VariablesFrom, path: FieldPath, references: References
) -> dict[str, ValueProvider]:
    kind: Kind = "Secret" if source.secret_ref else "ConfigMap"
    ref = source.secret_ref or source.config_map_ref
    if ref is None or references.is_mounted:
        return {}
    keys = references.all_keys(path, kind, ref.name, optional=ref.optional)
    return {source.prefix + key: secret for key, secret in keys.items()}


def _variable(variable: Variable, path: FieldPath, references: References) -> ValueProvider:
    source = variable.value_from
    if references.is_mounted or (source and (source.field_ref or source.resource_field_ref)):
        value = _process_variable(variable.name, path, references)
        if source and source.secret_key_ref and variable.name not in PUBLIC_VARIABLES:
            SECRETS.remember(value() or "")
        return value
    path = (*path, "valueFrom")
    if source and (ref := source.secret_key_ref):
        read = references.text_of_key if variable.name in PUBLIC_VARIABLES else references.key
        return read(path, "Secret", ref, is_required=not ref.optional)
    if source and (ref := source.config_map_key_ref):
        return references.key(path, "ConfigMap", ref, is_required=not ref.optional)
    return constant_value(variable.value or "")


def _process_variable(name: str, path: FieldPath, references: References) -> ValueProvider:
    """Read a variable of this process, which Kubernetes has set (on a laptop, the user)."""
    environ = references.targets.environ
    if not references.is_mounted and name not in environ:
        references.add_problem(path, f"has a value only in a cluster; set {name} to have one here")
    return lambda: environ.get(name)


_OF_A_REPLY = frozenset({"content", "tool_calls", "error"})  # one of them is in each


def scripts_by_agent(text: str) -> Mapping[str, Any]:
    """Return the scripts of several agents, by name; empty if the text is one script."""
    if not text.lstrip().startswith("{"):
        return {}
    try:
        scripts = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}  # `check_mock_scripts` reports it
    return scripts if _OF_A_REPLY.isdisjoint(scripts) else {}


def script_of(agent: str, text: str, *, is_asked: bool) -> str:
    """Return an agent's script, or "": its own of several, or the only one if it is asked."""
    scripts = scripts_by_agent(text)
    if not scripts:
        return text if is_asked else ""
    if agent not in scripts:
        return ""
    replies = scripts[agent]
    return orjson.dumps(replies if isinstance(replies, list) else [replies]).decode()


def issuer_config(references: References, n: int, issuer: IssuerSpec) -> IssuerConfig:
    """Make the configuration of `access.issuers[n]`.

    A pod takes what the API has accepted, and certificates may come to it later: there, what is
    wrong with them is said when the issuer is asked.
    """
    path: FieldPath = ("spec", "access", "issuers", n)
    ca = references.text_of_source((*path, "caFrom"), issuer.ca_from)
    if issuer.ca is not None:
        ca = constant_value(issuer.ca)
    text = None if ca is None or references.is_mounted else ca()
    if text is not None and (problem := ca_problem(text)):
        references.add_problem((*path, "ca" if issuer.ca else "caFrom"), problem)
    return IssuerConfig(
        issuer.url,
        issuer.audience,
        issuer.user_claim,
        issuer.groups_claim,
        tuple(issuer.jwks.keys) if issuer.jwks else None,
        ca=ca,
    )


def call_policy(manifest: AgentManifest, references: References) -> Policy:
    """Give the policy that the rules of a valid manifest make, and those of its platform.

    Rules of the platform that do not have their form are a problem of `references`.
    """
    own = Policy(tuple(map(_rule, manifest.spec.policy)))
    try:
        platform = manifest.metadata.platform_policy
    except ValueError as error:
        problem = f"{PLATFORM_POLICY} is not what this version understands: {error}"
        references.add_problem(("metadata", "annotations"), " ".join(problem.split()))
        return own
    if not platform:
        return own
    return LayeredPolicy(Policy(tuple(map(_rule, platform)), "platform"), own)


def named_calls(spec: AgentSpec) -> Iterator[NamedCalls]:
    """Find all fields that name tools or agents. The platform's rules are for all Agents alike."""
    for n, rule in enumerate(spec.policy):
        about: About = "tool" if rule.match.agent is None else "agent"
        pattern = rule.match.tool or rule.match.agent or ""
        if (pattern,) != ALL_TOOLS:
            yield NamedCalls(f"spec.policy[{n}].match.{about}", about, pattern)
    for n, server in enumerate(spec.tools):
        allowed = [(f"allow[{m}]", pattern) for m, pattern in enumerate(server.allow)]
        changed = [(f"overrides[{m}].tool", each.tool) for m, each in enumerate(server.overrides)]
        for field, pattern in (*allowed, *changed):
            if (pattern,) != ALL_TOOLS:
                yield NamedCalls(f"spec.tools[{n}].{field}", "tool", pattern, server.name)


def _rule(rule: PolicyRuleSpec) -> Rule:
    about: About = "tool" if rule.match.agent is None else "agent"
    return Rule(
        about,
        rule.match.tool or rule.match.agent or "",
        rule.do,
        check_expression(rule.when, about) if rule.when is not None else None,
        rule.reason,
        rule.expires,
        is_dry_run=rule.mode == "dryRun",
        repeat=rule.repeat,
    )
