"""Follows the references of one manifest: to keys, Services, agents and a Redis.

Each reference without a target adds one line to `References.problems`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from diptych.manifest import AgentManifest
from diptych.manifest.agent import PeerSpec
from diptych.manifest.cluster import Variable, VariablesFrom
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.environment import MOCK, PUBLIC_URL
from diptych.manifest.fields import Header, KeyRef, TextSource, url_problem
from diptych.manifest.model_file import mounted_file
from diptych.manifest.secret_sources import (
    Kind,
    Reference,
    SecretSources,
    constant_value,
    value_from_file,
)
from diptych.manifest.sessions import RedisService, RedisSpec
from diptych.manifest.shared import SharedObjects
from diptych.manifest.tools import ServiceRef, ToolVariable
from diptych.net.redaction import SECRETS, remembered
from diptych.ports import ValueProvider

PLATFORM_FILE = "access/platform.json"
"""In a pod's folder of references: what the operator says of callers (`read_platform_access`)."""
TOKENS = "tokens"
"""In the same folder: a token for each agent that this one may ask, `<namespace>.<name>`."""

UNRESOLVED = "http://unresolved.invalid"
"""A URL that is never asked: a problem refuses its manifest."""
_PUBLIC_VARIABLES = frozenset({MOCK, PUBLIC_URL})
"""Variables that everybody may read, even if they come from a Secret."""
AGENT_PORT = 8000  # of every Agent's Service
_REDIS_SCHEMES = ("redis://", "rediss://")
_REDIS = re.compile(
    r"(?:rediss?://)?(?:\[[0-9a-fA-F:.]+\]|[-._a-zA-Z0-9]+)(?::([0-9]{1,5}))?(?:/[0-9]*)?"
)
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class ReferenceTargets:
    """What references can lead to.

    `services` are the addresses of `--service`, by name or `namespace/name`; `agents` the URLs of
    the agents that run beside this one, by (namespace, name). `public_url` is that of the process,
    if it serves this agent only. `asked` is the agent that a script in the environment is for; None
    is whichever it is. `shared` has the ModelAPIs and MCPServers of the files.
    """

    secrets: SecretSources
    environ: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict)
    agents: Mapping[tuple[str, str], str] = field(default_factory=dict)
    public_url: str | None = None
    asked: str | None = None
    shared: SharedObjects = field(default_factory=SharedObjects)

    def web_url(self, *names: str) -> str | None:
        """Find the URL of a Service that is no Redis, under the first of these names."""
        addresses = filter(None, map(self.services.get, names))
        return next((a for a in addresses if not a.startswith(_REDIS_SCHEMES)), None)


class References:
    """The references of one manifest.

    In a pod (`is_mounted`) every key is a mounted file, which may be missing and come later;
    `mounted_keys` collects them. On a laptop a missing key is a problem.
    """

    def __init__(
        self,
        namespace: str,
        location: SourceLocation,
        targets: ReferenceTargets,
        folder: Path | None = None,
    ) -> None:
        """`folder` has the mounted files, if the operator has resolved the manifest for a pod."""
        self.targets = targets
        self.describe = location.describe
        self.problems: list[str] = []
        self.mounted_keys: dict[str, ValueProvider] = {}
        self.namespace = namespace
        self._folder = folder
        # The file in a pod is the operator's, whose lines nobody has seen.
        self.locate = location.describe if self._folder else location.locate

    @property
    def is_mounted(self) -> bool:
        """Whether the operator has resolved the manifest for a pod."""
        return self._folder is not None

    def add_problem(self, path: FieldPath, message: str) -> None:
        self.problems.append(f"{self.locate(path)}: {message}")

    def key(
        self, path: FieldPath, kind: Kind, ref: KeyRef, *, is_required: bool = True
    ) -> ValueProvider:
        """Return a reader of one key of a Secret or ConfigMap.

        A Secret's values are redacted in logs and results from now on, unless the model sees them
        anyway (`text_of_key`).
        """
        read = self.text_of_key(path, kind, ref, is_required=is_required)
        if kind != "Secret":
            return read
        secret = remembered(read)
        secret()  # others may repeat it before it is used here
        return secret

    def text_of_key(
        self, path: FieldPath, kind: Kind, ref: KeyRef, *, is_required: bool = True
    ) -> ValueProvider:
        """Return a reader of one key, whose value is no secret wherever it lies."""
        if file := mounted_file(ref, self._folder):
            return self.mounted_keys.setdefault(str(file), value_from_file(file))
        reference = Reference(kind, ref.name, ref.key, self.namespace)
        if self._folder is not None:
            name = f"{ref.key} of {kind} {ref.name}"
            file = self._folder / reference.file
            return self.mounted_keys.setdefault(name, value_from_file(file))
        secret = self.targets.secrets.find(reference)
        if is_required and secret() is None:
            self.add_problem(
                path,
                f"key {ref.key} of {kind} {ref.name} is missing; set {reference.variable}, "
                "or give --secrets FILE",
            )
        return secret

    def text_of_source(self, path: FieldPath, source: TextSource | None) -> ValueProvider | None:
        """Return a reader of a text that another object holds; it is no secret."""
        if source and source.secret_key_ref:
            return self.text_of_key(path, "Secret", source.secret_key_ref)
        if source and source.config_map_key_ref:
            return self.text_of_key(path, "ConfigMap", source.config_map_key_ref)
        return None

    def all_keys(
        self, path: FieldPath, kind: Kind, name: str, *, optional: bool
    ) -> dict[str, ValueProvider]:
        """Return a reader of each key of a whole Secret or ConfigMap, on a laptop."""
        keys = self.targets.secrets.keys_of(kind, name, self.namespace)
        if not keys and not optional:
            self.add_problem(path, f"{kind} {name} is missing; give --secrets FILE with it")
        return keys

    def values(
        self, path: FieldPath, entries: Sequence[Header | ToolVariable], *, is_required: bool = True
    ) -> dict[str, ValueProvider]:
        """Return a reader of each header's or variable's value."""
        return {
            entry.name: self.key(
                (*path, index, "valueFrom"),
                "Secret",
                entry.value_from.secret_key_ref,
                is_required=is_required,
            )
            if entry.value_from
            else constant_value(entry.value or "")
            for index, entry in enumerate(entries)
        }

    def variables(
        self, path: FieldPath, env: Sequence[Variable], env_from: Sequence[VariablesFrom]
    ) -> dict[str, ValueProvider]:
        """Read a container's variables; `env` counts before `envFrom`, as in Kubernetes.

        `path` is that of the mapping with both.
        """
        found: dict[str, ValueProvider] = {}
        for index, source in enumerate(env_from):
            ref = source.secret_ref or source.config_map_ref
            if ref and not self.is_mounted:
                kind: Kind = "Secret" if source.secret_ref else "ConfigMap"
                place = (*path, "envFrom", index)
                keys = self.all_keys(place, kind, ref.name, optional=ref.optional)
                found |= {source.prefix + key: read for key, read in keys.items()}
        for index, variable in enumerate(env):
            found[variable.name] = self._variable((*path, "env", index), variable)
        return found

    def _variable(self, path: FieldPath, variable: Variable) -> ValueProvider:
        name, source = variable.name, variable.value_from
        is_public = name in _PUBLIC_VARIABLES
        if self.is_mounted or (source and (source.field_ref or source.resource_field_ref)):
            environ = self.targets.environ
            if source and source.secret_key_ref and not is_public:
                SECRETS.remember(environ.get(name) or "")
            if not self.is_mounted and name not in environ:
                self.add_problem(
                    path, f"has a value only in a cluster; set {name} to have one here"
                )
            return lambda: environ.get(name)
        path = (*path, "valueFrom")
        if source and (ref := source.secret_key_ref):
            read = self.text_of_key if is_public else self.key
            return read(path, "Secret", ref, is_required=not ref.optional)
        if source and (ref := source.config_map_key_ref):
            return self.key(path, "ConfigMap", ref, is_required=not ref.optional)
        return constant_value(variable.value or "")

    def token(self, peer: PeerSpec) -> ValueProvider | None:
        """Return a reader of the pod's own token for another agent; None on a laptop."""
        if self._folder is None:
            return None
        name = f"{peer.namespace or self.namespace}.{peer.name}"
        return remembered(value_from_file(self._folder / TOKENS / name))

    def platform_file(self) -> ValueProvider | None:
        """Return a reader of what the operator says of callers; None on a laptop."""
        return value_from_file(self._folder / PLATFORM_FILE) if self._folder else None

    def service_url(self, path: FieldPath, ref: ServiceRef) -> str:
        """Find the URL of the MCP server behind a Service."""
        names = [f"{ref.namespace}/{ref.name}", ref.name] if ref.namespace else [ref.name]
        url = self.targets.web_url(*names)
        if url is None:
            self.add_problem(
                path, f"Service {ref.name} has no address here; give --service {ref.name}=URL"
            )
            return UNRESOLVED
        return with_path(url, ref.path)

    def agent_url(self, path: FieldPath, peer: PeerSpec) -> str:
        """Find the URL of an Agent."""
        name, namespace = peer.name or "", peer.namespace or self.namespace
        if self.is_mounted:
            return f"http://{name}.{namespace}:{AGENT_PORT}"
        targets = self.targets
        url = (
            targets.web_url(f"{namespace}/{name}")
            or targets.agents.get((namespace, name))
            or targets.web_url(name)
        )
        if url is None:
            self.add_problem(
                path,
                f"there is no Agent {name} here (namespace {namespace}); "
                f"add its file, or give --service {name}=URL",
            )
        return url or ""  # never asked: the problem refuses the manifest

    def redis(self, path: FieldPath, redis: RedisSpec) -> tuple[ValueProvider, str, FieldPath]:
        """Return a reader of a Redis' URL, where that comes from, and the field that says it."""
        if redis.url_from:
            path, ref = (*path, "urlFrom"), redis.url_from.secret_key_ref
            source = f"{self.namespace}/{ref.name}/{ref.key}"
            return self.key(path, "Secret", ref), source, path
        path = (*path, "serviceRef")
        url = self._redis_url(path, redis.service_ref) if redis.service_ref else ""
        return constant_value(url), url, path

    def _redis_url(self, path: FieldPath, ref: RedisService) -> str:
        namespace = ref.namespace or self.namespace
        if self.is_mounted:
            return f"redis://{ref.name}.{namespace}:{ref.port}"
        services = self.targets.services
        address = services.get(f"{namespace}/{ref.name}") or services.get(ref.name)
        if not address:
            option = f"--service {ref.name}=redis://localhost:6379"
            self.add_problem(path, f"Service {ref.name} has no address here; give {option}")
            return ""  # never asked: the problem refuses the manifest
        return address if address.startswith(_REDIS_SCHEMES) else f"redis://{address}"


def with_path(url: str, path: str) -> str:
    """Add a path to a URL that has none."""
    has_path = urlsplit(url).path not in {"", "/"}
    return url if has_path else url.rstrip("/") + path


def redis_names(manifest: AgentManifest) -> tuple[str, ...]:
    """Return the names by which `--service` may name a manifest's Redis, if it is a Service."""
    redis = manifest.spec.sessions.redis
    if redis is None or redis.service_ref is None:
        return ()
    ref = redis.service_ref
    return f"{ref.namespace or manifest.metadata.namespace}/{ref.name}", ref.name


def service_problems(services: Mapping[str, str], redis: Collection[str]) -> list[str]:
    """Return a line for each wrong address of `--service`; those named in `redis` are a Redis's."""
    lines = []
    for name, address in services.items():
        is_redis = name in redis or address.startswith(_REDIS_SCHEMES)
        if problem := _redis_problem(address) if is_redis else url_problem(address):
            lines.append(f"--service {name}: {problem}")
    return lines


def _redis_problem(address: str) -> str | None:
    if "@" in address:
        return "must not hold a user or password; use sessions.redis.urlFrom for that"
    match = _REDIS.fullmatch(address)
    if match is None or not 0 < int(match[1] or 1) <= _MAX_PORT:
        return "must be where a Redis is, such as redis://localhost:6379 or localhost:6379"
    return None
