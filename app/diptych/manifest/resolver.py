"""Makes an `AgentConfig` of a manifest, whose references it follows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diptych.access.limits import Limits
from diptych.core.run_settings import RunSettings
from diptych.manifest import AgentManifest
from diptych.manifest.access import AccessSpec
from diptych.manifest.access_settings import AccessConfig
from diptych.manifest.agent import AgentSpec
from diptych.manifest.budgets import budget_fields, run_deadline, shared_budgets
from diptych.manifest.call_policy import call_policy, named_calls
from diptych.manifest.container_env import container_env, variable_path
from diptych.manifest.grants import access_grants, unknown_keys
from diptych.manifest.headers import Header
from diptych.manifest.hooks import HookSpec
from diptych.manifest.issuers import issuer_config
from diptych.manifest.model import FallbackSpec, ModelSpec
from diptych.manifest.peers import PeerSpec
from diptych.manifest.references import References, ReferenceTargets
from diptych.manifest.scripts import script_of, scripts_by_agent
from diptych.manifest.secret_sources import constant_value
from diptych.manifest.services import agent_base_url
from diptych.manifest.sessions import SessionsSpec
from diptych.manifest.settings import (
    AgentConfig,
    ChatConfig,
    ModelConfig,
    OverrideConfig,
    PeerConfig,
    StoreConfig,
    TimeoutConfig,
    ToolServerConfig,
    sessions_prefix,
)
from diptych.manifest.source_location import FieldPath, SourceLocation
from diptych.manifest.strict_model import StrictModel
from diptych.manifest.tools import ToolServerSpec
from diptych.manifest.urls import url_problem
from diptych.manifest.validation import raise_problems
from diptych.manifest.variables import MOCK, PUBLIC_URL
from diptych.ports import ValueProvider
from diptych.runs.definition import AgentDefinition, HookConfig


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
