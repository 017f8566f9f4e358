"""Follows the references of a manifest: to secrets, services, other agents. Gives `AgentConfig`.

What leads nowhere is one line each. Not here: files and the environment's form (`configuration`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from diptych.config.manifest import (
    AgentManifest,
    ContainerSpec,
    KeyRef,
    LoopSpec,
    ModelSpec,
    PeerSpec,
    ServiceRef,
    SessionsSpec,
    ToolSpec,
    Variable,
    VariablesFrom,
)
from diptych.config.manifest.field_types import url_problem
from diptych.config.secret_sources import Kind, Reference, SecretSources, literal, mounted
from diptych.config.services import Services, base_url, redis_in_cluster, redis_names
from diptych.config.settings import (
    AgentConfig,
    ModelConfig,
    OverrideConfig,
    PeerConfig,
    StoreConfig,
    TimeoutConfig,
    ToolConfig,
)
from diptych.config.validation import Path, SourceLocation, refuse
from diptych.loop.events import LoopSettings
from diptych.ports import Secret

MOCK = "DEBUG_MOCK_RESPONSES"
PUBLIC_URL = "PUBLIC_URL"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What references can lead to.

    `agents` are the URLs of the agents that run beside this one by (namespace, name). `public_url`
    is the process's own, if it speaks for this agent.
    """

    secrets: SecretSources
    environ: Mapping[str, str] = field(default_factory=dict)
    services: Services = field(default_factory=Services)
    agents: Mapping[tuple[str, str], str] = field(default_factory=dict)
    public_url: str | None = None


def resolved(manifest: AgentManifest, place: SourceLocation, around: Surroundings) -> AgentConfig:
    """Resolve a whole manifest. Raises `ConfigError` with a line for each loose end."""
    resolving = _Resolving(manifest, place, around)
    config = resolving.agent()
    refuse(resolving.problems)
    return config


class _Resolving:
    """One manifest on its way to an `AgentConfig`, and what was wrong with it so far."""

    def __init__(
        self, manifest: AgentManifest, place: SourceLocation, around: Surroundings
    ) -> None:
        self.problems: list[str] = []
        self._manifest = manifest
        self._place = place
        self._around = around
        self._folder = manifest.metadata.references
        self._keys: dict[str, Secret] = {}

    def agent(self) -> AgentConfig:
        name, spec = self._manifest.metadata, self._manifest.spec
        env = self._environment(spec.container)
        mock, mock_source = self._mock(env)
        if spec.model is None and mock is None:
            self._complain(("spec", "model"), f"is required, unless {MOCK} is set")
        instructions_from = self._instructions_from()
        return AgentConfig(
            name=name.name,
            namespace=name.namespace,
            description=spec.description,
            instructions=(instructions_from and instructions_from()) or spec.instructions or "",
            model=self._model(spec.model, mocked=mock is not None) if spec.model else None,
            mock_responses=mock,
            mock_source=mock_source,
            tools=tuple(
                self._tool(("spec", "tools", i), tool, env) for i, tool in enumerate(spec.tools)
            ),
            agents=tuple(self._peer(("spec", "agents", i), p) for i, p in enumerate(spec.agents)),
            loop=_loop_settings(spec.loop),
            deadline=spec.loop.deadline,
            public_url=self._public_url(env),
            env=env,
            instructions_from=instructions_from,
            store=self._store(spec.sessions),
            keys=self._keys,
        )

    def _complain(self, path: Path, sentence: str) -> None:
        self.problems.append(f"{self._place.at(path)}: {sentence}")

    def _secret(self, path: Path, kind: Kind, ref: KeyRef, *, needed: bool = True) -> Secret:
        wanted = Reference(kind, ref.name, ref.key, self._manifest.metadata.namespace)
        if self._folder is not None:
            called = f"{ref.key} of {kind} {ref.name}"
            return self._keys.setdefault(called, mounted(self._folder / wanted.file))
        secret = self._around.secrets.find(wanted)
        if needed and secret() is None:
            self._complain(
                path,
                f"key {ref.key} of {kind} {ref.name} is missing; set {wanted.variable}, "
                "or give --secrets FILE",
            )
        return secret

    def _environment(self, container: ContainerSpec) -> dict[str, Secret]:
        """Give the container's variables; of two with one name the explicit one counts."""
        env: dict[str, Secret] = {}
        for index, source in enumerate(container.env_from):
            env |= self._variables(("spec", "container", "envFrom", index), source)
        for index, variable in enumerate(container.env):
            env[variable.name] = self._variable(("spec", "container", "env", index), variable)
        return env

    def _variables(self, path: Path, source: VariablesFrom) -> dict[str, Secret]:
        kind: Kind = "Secret" if source.secret_ref else "ConfigMap"
        ref = source.secret_ref or source.config_map_ref
        if ref is None or self._folder is not None:
            return {}
        found = self._around.secrets.all_of(kind, ref.name, self._manifest.metadata.namespace)
        if not found and not ref.optional:
            self._complain(path, f"{kind} {ref.name} is missing; give --secrets FILE with it")
        return {source.prefix + key: secret for key, secret in found.items()}

    def _variable(self, path: Path, variable: Variable) -> Secret:
        source = variable.value_from
        if self._folder is not None or (source and (source.field_ref or source.resource_field_ref)):
            return self._process_variable(path, variable.name)
        if source and source.secret_key_ref:
            ref = source.secret_key_ref
            return self._secret((*path, "valueFrom"), "Secret", ref, needed=not ref.optional)
        if source and source.config_map_key_ref:
            ref = source.config_map_key_ref
            return self._secret((*path, "valueFrom"), "ConfigMap", ref, needed=not ref.optional)
        return literal(variable.value or "")

    def _process_variable(self, path: Path, name: str) -> Secret:
        """Take a variable as Kubernetes has given it to the process (on a laptop, the user)."""
        if self._folder is None and name not in self._around.environ:
            self._complain(path, f"has a value only in a cluster; set {name} to have one here")
        return lambda: self._around.environ.get(name)

    def _mock(self, env: Mapping[str, Secret]) -> tuple[str | None, str]:
        """Give the script, if any, and where it stands; an empty one in a manifest means none."""
        if MOCK not in env:
            text = self._around.environ.get(MOCK, "")
            return (text, MOCK) if text.strip() else (None, "")
        index = list(env).index(MOCK)
        text = env[MOCK]() or ""
        source = self._place.at(("spec", "container", "env", index))
        return (text, f"{source}: {MOCK}") if text.strip() else (None, "")

    def _public_url(self, env: Mapping[str, Secret]) -> str | None:
        url = env[PUBLIC_URL]() if PUBLIC_URL in env else None
        if not url:
            return self._around.public_url
        problem = url_problem(url)
        if problem:
            index = list(env).index(PUBLIC_URL)
            self._complain(("spec", "container", "env", index), f"{PUBLIC_URL} {problem}")
        return url.rstrip("/")

    def _instructions_from(self) -> Secret | None:
        path, source = ("spec", "instructionsFrom"), self._manifest.spec.instructions_from
        if source and source.secret_key_ref:
            return self._secret(path, "Secret", source.secret_key_ref)
        if source and source.config_map_key_ref:
            return self._secret(path, "ConfigMap", source.config_map_key_ref)
        return None

    def _model(self, model: ModelSpec, *, mocked: bool) -> ModelConfig:
        path, key, times = ("spec", "model", "apiKey"), model.api_key, model.timeouts
        return ModelConfig(
            name=model.name,
            endpoint=model.endpoint.rstrip("/"),
            api_key=self._secret(path, "Secret", key.secret_key_ref, needed=not mocked)
            if key
            else None,
            temperature=model.parameters.temperature,
            max_tokens=model.parameters.max_tokens,
            reasoning_effort=model.parameters.reasoning_effort,
            timeouts=TimeoutConfig(times.connect, times.first_byte, times.idle, times.total),
        )

    def _tool(self, path: Path, tool: ToolSpec, env: Mapping[str, Secret]) -> ToolConfig:
        ref = tool.service_ref
        return ToolConfig(
            name=tool.name,
            url=self._service((*path, "serviceRef"), ref) if ref else tool.url,
            command=tool.command or (),
            env=env if tool.command else {},
            allow=tool.allow,
            headers=self._headers((*path, "headers"), tool),
            timeout=tool.timeout,
            overrides=tuple(
                OverrideConfig(
                    o.tool, o.read_only, o.idempotent, o.sequential, o.terminal, o.timeout
                )
                for o in tool.overrides
            ),
        )

    def _headers(self, path: Path, tool: ToolSpec) -> Mapping[str, Secret]:
        return {
            header.name: self._secret(
                (*path, index, "valueFrom"), "Secret", header.value_from.secret_key_ref
            )
            if header.value_from
            else literal(header.value or "")
            for index, header in enumerate(tool.headers)
        }

    def _service(self, path: Path, ref: ServiceRef) -> str:
        url = self._around.services.web(ref.name)
        if url is None:
            self._complain(
                path, f"Service {ref.name} has no address here; give --service {ref.name}=URL"
            )
            return "http://unresolved.invalid"  # never asked: the line above refuses the manifest
        has_path = urlsplit(url).path not in {"", "/"}
        return url if has_path else url.rstrip("/") + ref.path

    def _peer(self, path: Path, peer: PeerSpec) -> PeerConfig:
        shares = peer.share_context
        if peer.url is not None:
            return PeerConfig(peer.visible_name, base_url(peer.url), share_context=bool(shares))
        name = peer.name or ""
        namespace = peer.namespace or self._manifest.metadata.namespace
        url = (
            self._around.services.web(f"{namespace}/{name}")
            or self._around.agents.get((namespace, name))
            or self._around.services.web(name)
        )
        if url is None:
            self._complain(
                path,
                f"there is no Agent {name} here (namespace {namespace}); "
                f"add its file, or give --service {name}=URL",
            )
        return PeerConfig(peer.visible_name, base_url(url or ""), share_context=shares is not False)

    def _store(self, sessions: SessionsSpec) -> StoreConfig | None:
        path, redis, me = ("spec", "sessions", "redis"), sessions.redis, self._manifest.metadata
        if redis is None:
            return None
        source = redis.url_from
        url = (
            self._secret((*path, "urlFrom"), "Secret", source.secret_key_ref)
            if source
            else literal(self._redis((*path, "serviceRef")))
        )
        return StoreConfig(url, sessions.retention, f"diptych:{me.namespace}:{me.name}")

    def _redis(self, path: Path) -> str:
        if self._folder is not None:
            return redis_in_cluster(self._manifest)
        *_, name = names = redis_names(self._manifest)
        url = self._around.services.redis(names)
        if url is None:
            option = f"--service {name}=redis://localhost:6379"
            self._complain(path, f"Service {name} has no address here; give {option}")
        return url or ""  # never asked: the line above refuses the manifest


def _loop_settings(loop: LoopSpec) -> LoopSettings:
    return LoopSettings(
        max_steps=loop.max_steps,
        on_max_steps=loop.on_max_steps,
        max_parallel_calls=loop.max_parallel_calls,
        max_retries=loop.max_retries,
        memory_context_limit=loop.memory_context_limit,
    )
