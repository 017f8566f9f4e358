"""From files or the environment to `AgentConfig`: the one way in, with the same rules for both.

All that is wrong is told at once, a line each, in one `ConfigError`. Agents that run side by side
know each other by URLs, which exist only once their ports are open; so loading has two steps:

    loaded = load_agents(files, options)       # everything is checked here
    configs = loaded.resolve(urls)             # one URL per agent, in the order of loaded.names

Not here: the rules (`manifest`), the reading (`documents`), where references lead (`resolving`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diptych.config.documents import Document, read_documents
from diptych.config.environment import manifest_content, process_settings
from diptych.config.manifest import KIND, AgentManifest
from diptych.config.resolver import MOCK, Surroundings, resolved
from diptych.config.secret_sources import SecretSources
from diptych.config.services import Services, redis_names
from diptych.config.settings import (
    AgentConfig,
    ModelConfig,
    OverrideConfig,
    PeerConfig,
    ProcessSettings,
    StoreConfig,
    TimeoutConfig,
    ToolConfig,
)
from diptych.config.validation import SourceLocation, refuse, validated
from diptych.errors import ConfigError

__all__ = [
    "AgentConfig",
    "LaptopOptions",
    "LoadedAgents",
    "ModelConfig",
    "OverrideConfig",
    "PeerConfig",
    "ProcessSettings",
    "SourceLocation",
    "StoreConfig",
    "TimeoutConfig",
    "ToolConfig",
    "check",
    "configured",
    "env_agent",
    "load_agents",
    "process_settings",
]

_BESIDE = ("Secret", "ConfigMap")
_NOT_YET_BOUND = "http://127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class LaptopOptions:
    """What stands in for a cluster: the environment, `--secrets FILE`, `--service name=url`."""

    environ: Mapping[str, str] = field(default_factory=dict)
    secrets_file: Path | None = None
    services: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedAgents:
    """Agents that are valid and whose references all lead somewhere, but have no URLs yet."""

    manifests: tuple[tuple[AgentManifest, SourceLocation], ...]
    surroundings: Surroundings

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(manifest.metadata.name for manifest, _ in self.manifests)

    def resolve(self, urls: Sequence[str]) -> tuple[AgentConfig, ...]:
        """Give each agent its URL, in the order of `names`, and make what they are built from."""
        agents = {
            _key(manifest): url for (manifest, _), url in zip(self.manifests, urls, strict=True)
        }
        around = replace(self.surroundings, agents=agents)
        return _resolved_all(self.manifests, around)


def load_agents(files: Sequence[Path], options: LaptopOptions) -> LoadedAgents:
    """Load every Agent of the files. Raises `ConfigError` with every problem there is."""
    contents = _read(files)
    services = Services(options.services)
    stores = {name for manifest, _ in contents.manifests for name in redis_names(manifest)}
    problems = contents.problems + services.problems(stores)
    try:
        secrets = SecretSources(options.environ, options.secrets_file, contents.beside)
    except ConfigError as error:
        refuse([*problems, *error.problems])
        raise
    around = Surroundings(secrets, options.environ, services)
    if len(contents.manifests) == 1:
        around = replace(around, public_url=_public_url(options.environ))
    # A manifest with mistakes is still there for the others to refer to.
    there = dict.fromkeys(contents.mentioned, _NOT_YET_BOUND)
    try:
        _resolved_all(contents.manifests, replace(around, agents=there))
    except ConfigError as error:
        problems += error.problems
    refuse(problems)
    return LoadedAgents(contents.manifests, around)


def check(files: Sequence[Path]) -> list[str]:
    """List what is wrong with the files, as a cluster would say it: no reference is followed."""
    contents = _read(files)
    try:
        SecretSources({}, documents=contents.beside)
    except ConfigError as error:
        contents.problems += error.problems
    modelless = [
        f"{place.at(('spec', 'model'))}: is required, unless {MOCK} is set in container.env"
        for manifest, place in contents.manifests
        if manifest.spec.model is None
        and MOCK not in {variable.name for variable in manifest.spec.container.env}
    ]
    return [*contents.problems, *modelless]


def env_agent(environ: Mapping[str, str]) -> AgentConfig:
    """Make the agent of a plain container. Raises `ConfigError`; its lines name the variables."""
    content, place, problems = manifest_content(environ)
    try:
        config = configured(content, place, LaptopOptions(environ))
    except ConfigError as error:
        raise ConfigError(*problems, *error.problems) from None
    refuse(problems)
    return config


def configured(
    content: Mapping[str, Any], place: SourceLocation, options: LaptopOptions
) -> AgentConfig:
    """Make one agent of a manifest's content that was not read from a file.

    `place` names its fields in the lines of the `ConfigError` that this raises.
    """
    manifest = validated(content, place)
    secrets = SecretSources(options.environ, options.secrets_file)
    public_url = _public_url(options.environ)
    services = Services(options.services)
    around = Surroundings(secrets, options.environ, services, public_url=public_url)
    return resolved(manifest, place, around)


@dataclass(slots=True)
class _Contents:
    """What files hold: good manifests, names of all, what stands beside them, and mistakes."""

    manifests: tuple[tuple[AgentManifest, SourceLocation], ...] = ()
    mentioned: dict[tuple[str, str], str] = field(default_factory=dict)
    beside: list[Document] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, document: Document) -> None:
        kind = document.content.get("kind")
        if kind in _BESIDE:
            self.beside.append(document)
        elif kind == KIND:
            self._add_agent(document)
        elif kind is None:
            self.problems.append(f'{document.source}: kind: is required; it must be "{KIND}"')
        else:
            self.problems.append(
                f'{document.source}: kind: must be "{KIND}"; only Secrets and ConfigMaps may stand '
                "beside it"
            )

    def _add_agent(self, document: Document) -> None:
        place = SourceLocation(document.source)
        self._mention(document)
        try:
            manifest = validated(document.content, place)
        except ConfigError as error:
            self.problems += error.problems
        else:
            self.manifests += ((manifest, place),)

    def _mention(self, document: Document) -> None:
        metadata = document.content.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            return
        key = str(metadata.get("namespace", "default")), metadata["name"]
        if key in self.mentioned:
            self.problems.append(
                f"{document.source}: metadata.name: the Agent {key[1]} stands already in "
                f"{self.mentioned[key]}; rename or remove one"
            )
        self.mentioned.setdefault(key, document.source)


def _read(files: Sequence[Path]) -> _Contents:
    contents = _Contents()
    for file in files:
        try:
            documents = read_documents(file)
        except ConfigError as error:
            contents.problems += error.problems
            continue
        for document in documents:
            contents.add(document)
    if not contents.mentioned and not contents.problems:
        names = ", ".join(map(str, files)) or "the command line"
        contents.problems.append(f"{names}: there is no Agent in it")
    return contents


def _resolved_all(
    manifests: Sequence[tuple[AgentManifest, SourceLocation]], around: Surroundings
) -> tuple[AgentConfig, ...]:
    configs: list[AgentConfig] = []
    problems: list[str] = []
    for manifest, place in manifests:
        try:
            configs.append(resolved(manifest, place, around))
        except ConfigError as error:
            problems += error.problems
    refuse(problems)
    return tuple(configs)


def _public_url(environ: Mapping[str, str]) -> str | None:
    return environ.get("PUBLIC_URL", "").strip().rstrip("/") or None


def _key(manifest: AgentManifest) -> tuple[str, str]:
    return manifest.metadata.namespace, manifest.metadata.name
