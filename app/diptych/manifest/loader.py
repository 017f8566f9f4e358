"""Loads agents from files or the environment, and makes the `AgentConfig` of each.

All problems are reported at once, a line each, in one `ConfigError`. Agents that run side by side
know each other by URLs, which exist only once their ports are bound. So loading has two steps:

    loaded = load_agents(files, options)       # checks everything
    configs = loaded.resolve(urls)             # one URL for each of loaded.names
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which
from typing import Any

from diptych.core.catalog import Catalog, Peer, Unavailable
from diptych.core.errors import ConfigError
from diptych.manifest import (
    API_VERSION,
    KIND,
    MANIFESTS,
    AgentManifest,
    AgentPoolManifest,
    AgentSpec,
    Manifest,
    McpServerManifest,
    ModelApiManifest,
)
from diptych.manifest.access import unknown_keys
from diptych.manifest.cluster import PodTemplate
from diptych.manifest.documents import (
    Document,
    FieldPath,
    SourceLocation,
    read_documents,
    read_text,
)
from diptych.manifest.environment import MOCK, manifest_content, public_url
from diptych.manifest.mcp_server import python_problem
from diptych.manifest.model import NEEDS_ENDPOINT, NEEDS_KEY, Address
from diptych.manifest.model_file import MODEL_FILE, parsed_model, with_model
from diptych.manifest.pod_spec import pod_spec_mistakes
from diptych.manifest.providers import KEYED, PUBLIC
from diptych.manifest.references import ReferenceTargets, redis_names, service_problems
from diptych.manifest.resolver import (
    named_calls,
    resolve_api,
    resolve_manifest,
    resolve_server,
    script_of,
    variable_path,
)
from diptych.manifest.rules import one_of
from diptych.manifest.secret_sources import CurrentFile, SecretSources
from diptych.manifest.settings import (
    NAMESPACE,
    AgentConfig,
    DataFolder,
    ModelConfig,
    ToolServerConfig,
)
from diptych.manifest.shared import ObjectId, SharedObjects, misspelt, models_of
from diptych.manifest.validation import (
    raise_problems,
    shown_value,
    validate_manifest,
    validate_object,
)
from diptych.policy.unmatched import is_glob, unmatched

_KEY_KINDS = ("Secret", "ConfigMap")
_GROUP = API_VERSION.partition("/")[0]
_KINDS = one_of([f'"{kind}"' for kind in MANIFESTS])
_MAX_NAME = 64  # characters of another API's kind in a note
_PLACEHOLDER_URL = "http://127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What replaces a cluster in a local run.

    The environment, the file of `--secrets`, and the addresses of `--service name=url`. `asked`
    names the agent that is asked; None is the first. `data` is where agents without a Redis store
    their runs.
    """

    environ: Mapping[str, str] = field(default_factory=dict)
    secrets_file: Path | None = None
    services: Mapping[str, str] = field(default_factory=dict)
    asked: str | None = None
    data: DataFolder | None = None


@dataclass(frozen=True, slots=True)
class LoadedAgents:
    """Agents that are valid and whose references all lead somewhere, but that have no URLs yet."""

    manifests: Sequence[tuple[AgentManifest, SourceLocation]]
    targets: ReferenceTargets
    data: DataFolder | None = None
    model_file: CurrentFile[AgentConfig] | None = None
    notes: tuple[str, ...] = ()
    """Advice, and a line for each object of another kind, which was passed over."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(manifest.metadata.name for manifest, _ in self.manifests)

    def apis(self) -> Iterator[tuple[ModelApiManifest, SourceLocation, ModelConfig]]:
        """Make the configurations of the ModelAPIs. Raises `ConfigError`."""
        for api, location in self.targets.shared.apis.values():
            yield api, location, resolve_api(api, location, self.targets)

    def servers(self) -> Iterator[tuple[McpServerManifest, SourceLocation, ToolServerConfig]]:
        """Make the configurations of the MCPServers. Raises `ConfigError`."""
        for server, location in self.targets.shared.servers.values():
            yield server, location, resolve_server(server, location, self.targets)

    def resolve(self, urls: Sequence[str]) -> tuple[AgentConfig, ...]:
        """Make all configurations, with a URL for each agent in the order of `names`."""
        agents = {
            (manifest.metadata.namespace, manifest.metadata.name): url
            for (manifest, _), url in zip(self.manifests, urls, strict=True)
        }
        configs = _resolve_all(self.manifests, replace(self.targets, agents=agents))
        return tuple(
            replace(config, data=self.data, model_file=self.model_file) for config in configs
        )


def load_agents(
    files: Sequence[Path], options: LocalOptions, *, needs_agent: bool = True
) -> LoadedAgents:
    """Load every Agent of the files. Raises `ConfigError` with all problems.

    Where the environment names a model file, it has the model of the only Agent.
    """
    if path := options.environ.get(MODEL_FILE, "").strip():
        return _load_with_model_file(files, Path(path), options)
    contents = _read_files(files)
    if needs_agent and contents.sources and not any(kind == KIND for kind, *_ in contents.sources):
        contents.problems.append(_without_agent(files))
    redis = {name for manifest, _ in contents.manifests for name in redis_names(manifest)}
    problems = contents.problems + service_problems(options.services, redis)
    try:
        secrets = SecretSources(options.environ, options.secrets_file, contents.key_documents)
    except ConfigError as error:
        raise_problems([*problems, *error.problems])
        raise
    names = [manifest.metadata.name for manifest, _ in contents.manifests]
    asked = options.asked if options.asked in names else next(iter(names), None)
    targets = ReferenceTargets(
        secrets, options.environ, options.services, asked=asked, shared=contents.shared
    )
    if len(contents.manifests) == 1:
        targets = replace(targets, public_url=public_url(options.environ))
    # Agents with mistakes are targets too: a reference to one is no mistake of its own.
    agents = {
        (namespace, name): _PLACEHOLDER_URL
        for kind, namespace, name in contents.sources
        if kind == KIND
    }
    try:
        _resolve_all(contents.manifests, replace(targets, agents=agents))
    except ConfigError as error:
        problems += error.problems
    raise_problems(problems)
    notes = tuple(contents.notes)
    return LoadedAgents(contents.manifests, targets, options.data, notes=notes)


def check_files(files: Sequence[Path]) -> "FileContents":
    """Check files as a cluster would; references are followed within them only."""
    return checked(_read_files(files))


def checked(contents: "FileContents") -> "FileContents":
    """Add the problems and notes that a cluster would have with files."""
    try:
        SecretSources({}, documents=contents.key_documents)
    except ConfigError as error:
        contents.problems += error.problems
    shared = contents.shared
    for manifest, location in contents.manifests:
        for path, problem in (*_cluster_problems(manifest.spec), *shared.problems(manifest)):
            contents.problems.append(f"{location.locate(path)}: {problem}")
        for path, note in misspelt(manifest, contents.sources):
            contents.notes.append(f"{location.locate(path)}: {note}")
        for path, model in models_of(manifest.spec.model) if manifest.spec.model else ():
            contents.notes += _missing_in_cluster(path, model, location)
    for api, location in contents.apis.values():
        contents.notes += _missing_in_cluster(("spec",), api.spec, location)
    for path, template, location in contents.pod_templates():
        for place, problem in pod_spec_mistakes(template.spec, path):
            contents.problems.append(f"{location.locate(place)}: {problem}")
    return contents


def config_from_environment(
    environ: Mapping[str, str], data: DataFolder | None = None
) -> AgentConfig:
    """Make the agent of a plain container. Raises `ConfigError`; its lines name the variables."""
    content, location, problems = manifest_content(environ)
    try:
        config = config_from_content(content, location, LocalOptions(environ, data=data))
    except ConfigError as error:
        raise ConfigError(*problems, *error.problems) from None
    raise_problems(problems)
    return config


def config_from_content(
    content: Mapping[str, Any], location: SourceLocation, options: LocalOptions
) -> AgentConfig:
    """Make one agent of a manifest's content that is in no file.

    Raises `ConfigError`; `location` names the fields in its lines.
    """
    (config,) = load_content(content, location, options).resolve([_PLACEHOLDER_URL])
    return config


def load_content(
    content: Mapping[str, Any], location: SourceLocation, options: LocalOptions
) -> LoadedAgents:
    """Load one agent of a manifest's content; `resolve` follows its references."""
    manifest = validate_manifest(content, location)
    targets = ReferenceTargets(
        SecretSources(options.environ, options.secrets_file),
        options.environ,
        options.services,
        public_url=public_url(options.environ),
    )
    return LoadedAgents([(manifest, location)], targets, options.data)


def _load_with_model_file(files: Sequence[Path], path: Path, options: LocalOptions) -> LoadedAgents:
    documents = [each for file in files for each in read_documents(file)]
    agents = [each for each in documents if each.content.get("kind") == KIND]
    if len(agents) != 1:
        raise ConfigError(f"{MODEL_FILE}: needs files with one Agent; there are {len(agents)}")
    (document,) = agents

    def load(model: Mapping[str, Any]) -> LoadedAgents:
        return load_content(with_model(document.content, model), document.location, options)

    def resolve(text: str) -> AgentConfig:
        return load(parsed_model(text, path)).resolve([_PLACEHOLDER_URL])[0]

    source = CurrentFile(path, resolve, "model file: ")
    return replace(load(parsed_model(read_text(path), path)), model_file=source)


@dataclass(slots=True)
class FileContents:
    """The contents of files: valid manifests, Secrets and ConfigMaps, problems and notes.

    `manifests` are the Agents. `sources` maps kind, namespace and name of every object, valid or
    not, to its document. `names` has the file, kind and name of each valid one.
    """

    manifests: list[tuple[AgentManifest, SourceLocation]] = field(default_factory=list)
    apis: dict[ObjectId, tuple[ModelApiManifest, SourceLocation]] = field(default_factory=dict)
    servers: dict[ObjectId, tuple[McpServerManifest, SourceLocation]] = field(default_factory=dict)
    pools: list[tuple[AgentPoolManifest, SourceLocation]] = field(default_factory=list)
    names: list[tuple[Path, str, str]] = field(default_factory=list)
    sources: dict[tuple[str, str, str], str] = field(default_factory=dict)
    key_documents: list[Document] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, file: Path, document: Document) -> None:
        kind, version = document.content.get("kind"), document.content.get("apiVersion")
        is_foreign = isinstance(version, str) and not version.startswith(f"{_GROUP}/")
        if kind in _KEY_KINDS:
            self.key_documents.append(document)
        elif kind == KIND or (isinstance(kind, str) and kind in MANIFESTS and not is_foreign):
            self._add_object(file, kind, document)
        elif kind is None:
            self.problems.append(f"{document.source}: kind: is required; it must be {_KINDS}")
        elif is_foreign and isinstance(kind, str):
            what = f"a {kind[:_MAX_NAME]} of {str(version)[:_MAX_NAME]} is passed over"
            self.notes.append(f"{document.source}: {what}")
        else:
            self.problems.append(
                f"{document.source}: kind: must be {_KINDS}{shown_value(kind, ())}; an object of "
                "another API names that in apiVersion"
            )

    def _add_object(self, file: Path, kind: str, document: Document) -> None:
        self._add_source(kind, document)
        self.notes += (f"{document.source}: {note}" for note in document.notes)
        location = document.location
        try:
            manifest: Manifest = validate_object(MANIFESTS[kind], document.content, location)
        except ConfigError as error:
            self.problems += error.problems
            return
        name = manifest.metadata.namespace, manifest.metadata.name
        self.names.append((file, kind, manifest.metadata.name))
        match manifest:
            case AgentManifest():
                self.manifests.append((manifest, location))
                self.notes += _missing_programs(manifest.spec, location)
            case ModelApiManifest():
                self.apis[name] = manifest, location
            case McpServerManifest():
                self.servers[name] = manifest, location
                self.problems += _code_problems(manifest, location)
                if command := manifest.spec.source.command:
                    where = location.describe(("spec", "source", "command"))
                    self.notes += _missing_program(command, where, "runtime.podTemplate")
            case AgentPoolManifest():
                self.pools.append((manifest, location))

    def _add_source(self, kind: str, document: Document) -> None:
        metadata = document.content.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            return
        full_name = kind, str(metadata.get("namespace", NAMESPACE)), metadata["name"]
        if full_name in self.sources:
            self.problems.append(
                f"{document.source}: metadata.name: the {kind} {full_name[2]} stands already in "
                f"{self.sources[full_name]}; rename or remove one"
            )
        self.sources.setdefault(full_name, document.source)

    @property
    def shared(self) -> SharedObjects:
        valid = {
            *(("ModelAPI", *name) for name in self.apis),
            *(("MCPServer", *name) for name in self.servers),
        }
        return SharedObjects(self.apis, self.servers, frozenset(self.sources.keys() - valid))

    def pod_templates(self) -> Iterator[tuple[FieldPath, PodTemplate, SourceLocation]]:
        """Find the pod templates, each with the path of its spec."""
        for agent, location in self.manifests:
            if agent.spec.pod_template:
                yield ("spec", "podTemplate", "spec"), agent.spec.pod_template, location
        for server, location in self.servers.values():
            if template := server.spec.runtime.pod_template:
                yield ("spec", "runtime", "podTemplate", "spec"), template, location
        for pool, location in self.pools:
            if pool.spec.pod_template:
                yield ("spec", "podTemplate", "spec"), pool.spec.pod_template, location

    def scripts(self) -> Iterator[tuple[str, str]]:
        """Find the values of DEBUG_MOCK_RESPONSES in the manifests, each with its place."""
        for manifest, location in self.manifests:
            container = manifest.spec.container
            for variable in container.env:
                if variable.name == MOCK and variable.value is not None:
                    source = f"{location.locate(variable_path(container, MOCK))}: {MOCK}"
                    yield source, script_of(manifest.metadata.name, variable.value, is_asked=True)

    def unmatched_names(self) -> Iterator[str]:
        """Find names that no server or agent of their manifest can have."""
        for manifest, location in self.manifests:
            spec = manifest.spec
            servers = [
                (s.name, None if any(map(is_glob, s.allow)) else tuple(s.allow)) for s in spec.tools
            ]
            catalog = Catalog(
                agents=tuple(Peer(peer.visible_name, "") for peer in spec.agents),
                unavailable=tuple(
                    Unavailable("server", name, "", tools) for name, tools in servers
                ),
            )
            for found in unmatched(tuple(named_calls(spec)), catalog):
                yield f"{location.source}: {found.place}: {found.reason}"


def _read_files(files: Sequence[Path]) -> FileContents:
    contents = FileContents()
    for file in files:
        try:
            documents = read_documents(file)
        except ConfigError as error:
            contents.problems += error.problems
            continue
        for document in documents:
            contents.add(file, document)
    if not contents.sources and not contents.problems:
        contents.problems.append(_without_agent(files))
    return contents


def _without_agent(files: Sequence[Path]) -> str:
    return f"{', '.join(map(str, files)) or 'the command line'}: there is no Agent in it"


def _cluster_problems(spec: AgentSpec) -> Iterator[tuple[FieldPath, str]]:
    """Find mistakes that only a cluster minds, or that its API cannot place."""
    is_scripted = any(variable.name == MOCK for variable in spec.container.env)
    if spec.model is None and not is_scripted:
        yield ("spec", "model"), f"is required, unless {MOCK} is set in container.env"
    yield from unknown_keys(spec.access)


def _missing_in_cluster(path: FieldPath, model: Address, location: SourceLocation) -> Iterator[str]:
    """Find what a laptop takes from the provider or the environment, and a cluster does not."""
    if model.provider and not model.endpoint and model.provider not in PUBLIC:
        yield f"{location.locate((*path, 'endpoint'))}: works on this machine; {NEEDS_ENDPOINT}"
    if model.provider in KEYED and not model.carries_key:
        yield f"{location.locate((*path, 'apiKey'))}: works on this machine; {NEEDS_KEY}"


def _code_problems(server: McpServerManifest, location: SourceLocation) -> Iterator[str]:
    code = server.spec.source.python
    if code is not None and (problem := python_problem(code)):
        yield f"{location.locate(('spec', 'source', 'python'))}: {problem}"


def _missing_programs(spec: AgentSpec, location: SourceLocation) -> Iterator[str]:
    """Name the programs of stdio servers that are not here: the image may lack them, too."""
    for number, tool in enumerate(spec.tools):
        if tool.command and not any(variable.name == "PATH" for variable in tool.env):
            path = ("spec", "tools", number, "command")
            yield from _missing_program(tool.command, location.describe(path), "container.image")


def _missing_program(command: Sequence[str], where: str, field: str) -> Iterator[str]:
    if which(command[0]) is None:
        yield (
            f"{where}: no program {command[0]} here; in a cluster the image must have it "
            f"(spec.{field}; docs/tools.md shows how to build one)"
        )


def _resolve_all(
    manifests: Sequence[tuple[AgentManifest, SourceLocation]], targets: ReferenceTargets
) -> tuple[AgentConfig, ...]:
    configs: list[AgentConfig] = []
    problems: list[str] = []
    for manifest, location in manifests:
        try:
            configs.append(resolve_manifest(manifest, location, targets))
        except ConfigError as error:
            problems += error.problems
    raise_problems(problems)
    return tuple(configs)
