"""Makes an `AgentConfig` of a manifest, whose references it follows.

Not here: where references lead (`references`), files and the environment's form (`loader`).
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from diptych.config.container_env import container_env, variable_path
from diptych.config.manifest import AgentManifest
from diptych.config.manifest.model import ModelSpec
from diptych.config.manifest.peers import PeerSpec
from diptych.config.manifest.sessions import SessionsSpec
from diptych.config.manifest.strict_model import StrictModel
from diptych.config.manifest.tools import ToolSpec
from diptych.config.manifest.urls import url_problem
from diptych.config.references import References, ReferenceTargets
from diptych.config.secret_sources import constant_secret
from diptych.config.services import agent_base_url
from diptych.config.settings import (
    AgentConfig,
    ModelConfig,
    OverrideConfig,
    PeerConfig,
    StoreConfig,
    TimeoutConfig,
    ToolConfig,
)
from diptych.config.source_location import FieldPath, SourceLocation
from diptych.config.validation import raise_problems
from diptych.config.variables import MOCK, PUBLIC_URL
from diptych.loop.events import LoopSettings
from diptych.ports import Secret


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
            self.references.add_problem(("spec", "model"), f"is required, unless {MOCK} is set")
        instructions_from = self._instructions_from()
        return AgentConfig(
            name=metadata.name,
            namespace=metadata.namespace,
            description=spec.description,
            instructions=(instructions_from and instructions_from()) or spec.instructions or "",
            model=self._model(spec.model, is_mocked=mock is not None) if spec.model else None,
            mock_responses=mock,
            mock_source=mock_source,
            tools=tuple(
                self._tool(("spec", "tools", i), tool, env) for i, tool in enumerate(spec.tools)
            ),
            agents=tuple(self._peer(("spec", "agents", i), p) for i, p in enumerate(spec.agents)),
            loop=LoopSettings(**_same_fields(spec.loop, LoopSettings)),
            deadline=spec.loop.deadline,
            public_url=self._public_url(env),
            env=env,
            instructions_from=instructions_from,
            store=self._store(spec.sessions),
            mounted_keys=self.references.mounted_keys,
        )

    def _mock(self, env: Mapping[str, Secret]) -> tuple[str | None, str]:
        """Give the script, if any, and where it is; an empty one in a manifest means none."""
        if MOCK not in env:
            text = self.references.targets.environ.get(MOCK, "")
            return (text, MOCK) if text.strip() else (None, "")
        text = env[MOCK]() or ""
        path = variable_path(self._manifest.spec.container, MOCK)
        source = f"{self.references.describe(path)}: {MOCK}"
        return (text, source) if text.strip() else (None, "")

    def _public_url(self, env: Mapping[str, Secret]) -> str | None:
        url = env[PUBLIC_URL]() if PUBLIC_URL in env else None
        if not url:
            return self.references.targets.public_url
        if problem := url_problem(url):
            path = variable_path(self._manifest.spec.container, PUBLIC_URL)
            self.references.add_problem(path, f"{PUBLIC_URL} {problem}")
        return url.rstrip("/")

    def _instructions_from(self) -> Secret | None:
        path, source = ("spec", "instructionsFrom"), self._manifest.spec.instructions_from
        if source and source.secret_key_ref:
            return self.references.key(path, "Secret", source.secret_key_ref)
        if source and source.config_map_key_ref:
            return self.references.key(path, "ConfigMap", source.config_map_key_ref)
        return None

    def _model(self, model: ModelSpec, *, is_mocked: bool) -> ModelConfig:
        path: FieldPath = ("spec", "model", "apiKey")
        api_key = None
        if model.api_key:
            ref = model.api_key.secret_key_ref
            api_key = self.references.key(path, "Secret", ref, is_required=not is_mocked)
        return ModelConfig(
            name=model.name,
            endpoint=model.endpoint.rstrip("/"),
            api_key=api_key,
            timeouts=TimeoutConfig(**_same_fields(model.timeouts, TimeoutConfig)),
            **_same_fields(model.parameters, ModelConfig),
        )

    def _tool(self, path: FieldPath, tool: ToolSpec, env: Mapping[str, Secret]) -> ToolConfig:
        ref = tool.service_ref
        return ToolConfig(
            name=tool.name,
            url=self.references.service_url((*path, "serviceRef"), ref) if ref else tool.url,
            command=tool.command or (),
            env=env if tool.command else {},
            allow=tool.allow,
            headers=self._headers((*path, "headers"), tool),
            timeout=tool.timeout,
            overrides=tuple(
                OverrideConfig(**_same_fields(override, OverrideConfig))
                for override in tool.overrides
            ),
        )

    def _headers(self, path: FieldPath, tool: ToolSpec) -> Mapping[str, Secret]:
        return {
            header.name: self.references.key(
                (*path, index, "valueFrom"), "Secret", header.value_from.secret_key_ref
            )
            if header.value_from
            else constant_secret(header.value or "")
            for index, header in enumerate(tool.headers)
        }

    def _peer(self, path: FieldPath, peer: PeerSpec) -> PeerConfig:
        if peer.url is not None:
            return PeerConfig(
                peer.visible_name,
                agent_base_url(peer.url),
                share_context=bool(peer.share_context),
            )
        url = agent_base_url(self.references.agent_url(path, peer))
        return PeerConfig(peer.visible_name, url, share_context=peer.share_context is not False)

    def _store(self, sessions: SessionsSpec) -> StoreConfig | None:
        redis, metadata = sessions.redis, self._manifest.metadata
        if redis is None:
            return None
        path: FieldPath = ("spec", "sessions", "redis")
        if redis.url_from:
            ref = redis.url_from.secret_key_ref
            url = self.references.key((*path, "urlFrom"), "Secret", ref)
        else:
            url = constant_secret(self.references.redis_url((*path, "serviceRef")))
        prefix = f"diptych:{metadata.namespace}:{metadata.name}"
        return StoreConfig(url, sessions.retention, prefix)


def _same_fields(model: StrictModel, config: type) -> dict[str, Any]:
    """Give the values of a manifest's fields that a configuration class has by the same name."""
    names = {field.name for field in fields(config)}
    return {name: getattr(model, name) for name in type(model).model_fields if name in names}
