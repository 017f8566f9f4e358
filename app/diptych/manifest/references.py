"""Follows the references of one manifest: to keys, Services, agents and a Redis.

Each reference without a target adds one line to `References.problems`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from diptych.manifest import AgentManifest
from diptych.manifest.agent import PeerSpec
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.fields import KeyRef, TextSource, url_problem
from diptych.manifest.secret_sources import Kind, Reference, SecretSources, value_from_file
from diptych.manifest.tools import ServiceRef
from diptych.net.redaction import remembered
from diptych.ports import ValueProvider

_CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_REDIS = re.compile(
    r"(?:rediss?://)?(?:\[[0-9a-fA-F:.]+\]|[-._a-zA-Z0-9]+)(?::([0-9]{1,5}))?(?:/[0-9]*)?"
)
_MAX_PORT = 65535
AGENT_PORT = 8000  # of every Agent's Service


@dataclass(frozen=True, slots=True)
class Services:
    """Addresses by name or `namespace/name`: URLs of the web, and addresses of a Redis."""

    addresses: Mapping[str, str] = field(default_factory=dict)

    def web_url(self, name: str) -> str | None:
        """Find the URL of a Service that is no Redis."""
        address = self.addresses.get(name)
        return None if address is None or _is_redis(address) else address

    def redis_url(self, names: Collection[str]) -> str | None:
        """Find the URL of a Redis under the first of these names that is known."""
        address = next(filter(None, map(self.addresses.get, names)), None)
        return address if address is None or _is_redis(address) else f"redis://{address}"

    def problems(self, redis_names: Collection[str]) -> list[str]:
        """Give a line for each wrong address; a Service in `redis_names` must be a Redis."""
        lines = []
        for name, address in self.addresses.items():
            is_redis = name in redis_names or _is_redis(address)
            if problem := _redis_problem(address) if is_redis else url_problem(address):
                lines.append(f"--service {name}: {problem}")
        return lines


def redis_service_names(manifest: AgentManifest) -> tuple[str, ...]:
    """Give the names by which `--service` may name the Service of a manifest's Redis, if any."""
    redis = manifest.spec.sessions.redis
    if redis is None or redis.service_ref is None:
        return ()
    ref = redis.service_ref
    return f"{ref.namespace or manifest.metadata.namespace}/{ref.name}", ref.name


def redis_service_url(manifest: AgentManifest) -> str:
    """Give the URL at which pods reach the Service of a manifest's Redis; "" if it has none."""
    redis = manifest.spec.sessions.redis
    if redis is None or redis.service_ref is None:
        return ""
    ref = redis.service_ref
    return f"redis://{ref.name}.{ref.namespace or manifest.metadata.namespace}:{ref.port}"


def agent_service_url(namespace: str, name: str) -> str:
    """Give the URL at which pods reach the Service of an Agent."""
    return f"http://{name}.{namespace}:{AGENT_PORT}"


def agent_base_url(url: str) -> str:
    """Give the base URL of an agent, from that URL or from its agent card's."""
    for card in _CARD_PATHS:
        url = url.removesuffix(card)
    return url.rstrip("/")


def _is_redis(address: str) -> bool:
    return address.startswith(("redis://", "rediss://"))


def _redis_problem(address: str) -> str | None:
    if "@" in address:
        return "must not hold a user or password; use sessions.redis.urlFrom for that"
    match = _REDIS.fullmatch(address)
    if match is None or not 0 < int(match[1] or 1) <= _MAX_PORT:
        return "must be where a Redis is, such as redis://localhost:6379 or localhost:6379"
    return None


PLATFORM_FILE = "access/platform.json"
"""In a pod's folder of references: what the operator says of callers (`platform_access`)."""
TOKENS = "tokens"
"""In the same folder: a token for each agent that this one may ask, `<namespace>.<name>`."""


@dataclass(frozen=True, slots=True)
class ReferenceTargets:
    """What references can lead to.

    `agents` are the URLs of the agents that run beside this one, by (namespace, name).
    `public_url` is that of the process, if it serves this agent only. `asked` is the agent that a
    script in the environment is for; None is whichever it is.
    """

    secrets: SecretSources
    environ: Mapping[str, str] = field(default_factory=dict)
    services: Services = field(default_factory=Services)
    agents: Mapping[tuple[str, str], str] = field(default_factory=dict)
    public_url: str | None = None
    asked: str | None = None


class References:
    """The references of one manifest.

    In a pod (`is_mounted`) every key is a mounted file, which may be missing and come later;
    `mounted_keys` collects them. On a laptop a missing key is a problem.
    """

    def __init__(
        self, manifest: AgentManifest, location: SourceLocation, targets: ReferenceTargets
    ) -> None:
        self.targets = targets
        self.problems: list[str] = []
        self.mounted_keys: dict[str, ValueProvider] = {}
        self._manifest = manifest
        self._location = location
        self._folder = manifest.metadata.references

    @property
    def is_mounted(self) -> bool:
        """Whether the operator has resolved the manifest for a pod."""
        return self._folder is not None

    def describe(self, path: FieldPath) -> str:
        """Name a field for an error line."""
        return self._location.describe(path)

    def add_problem(self, path: FieldPath, message: str) -> None:
        """Note what is wrong with a field."""
        self.problems.append(f"{self.describe(path)}: {message}")

    def key(
        self, path: FieldPath, kind: Kind, ref: KeyRef, *, is_required: bool = True
    ) -> ValueProvider:
        """Give what reads one key of a Secret or ConfigMap.

        What a Secret holds is taken out of logs and results from now on, unless it is shown to the
        model anyway (`text_of_key`).
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
        """Give what reads one key, whose value is no secret wherever it lies."""
        reference = Reference(kind, ref.name, ref.key, self._manifest.metadata.namespace)
        if self._folder is not None:
            name = f"{ref.key} of {kind} {ref.name}"
            return self.mounted_keys.setdefault(
                name, value_from_file(self._folder / reference.file)
            )
        secret = self.targets.secrets.find(reference)
        if is_required and secret() is None:
            self.add_problem(
                path,
                f"key {ref.key} of {kind} {ref.name} is missing; set {reference.variable}, "
                "or give --secrets FILE",
            )
        return secret

    def text_of_source(self, path: FieldPath, source: TextSource | None) -> ValueProvider | None:
        """Give what reads a text that another object holds, if there is one; it is no secret."""
        if source and source.secret_key_ref:
            return self.text_of_key(path, "Secret", source.secret_key_ref)
        if source and source.config_map_key_ref:
            return self.text_of_key(path, "ConfigMap", source.config_map_key_ref)
        return None

    def token(self, namespace: str, name: str) -> ValueProvider | None:
        """Give what reads the pod's own token for another agent, if the pod may have one."""
        if self._folder is None:
            return None
        return remembered(value_from_file(self._folder / TOKENS / f"{namespace}.{name}"))

    def platform_file(self) -> ValueProvider | None:
        """Give what reads the operator's word on callers, if the manifest is one of a pod."""
        return value_from_file(self._folder / PLATFORM_FILE) if self._folder else None

    def all_keys(
        self, path: FieldPath, kind: Kind, name: str, *, optional: bool
    ) -> dict[str, ValueProvider]:
        """Give what reads each key of a whole Secret or ConfigMap, on a laptop."""
        keys = self.targets.secrets.keys_of(kind, name, self._manifest.metadata.namespace)
        if not keys and not optional:
            self.add_problem(path, f"{kind} {name} is missing; give --secrets FILE with it")
        return keys

    def service_url(self, path: FieldPath, ref: ServiceRef) -> str:
        """Find the URL of the MCP server behind a Service."""
        services = self.targets.services
        url = services.web_url(ref.name)
        if ref.namespace:
            url = services.web_url(f"{ref.namespace}/{ref.name}") or url
        if url is None:
            self.add_problem(
                path, f"Service {ref.name} has no address here; give --service {ref.name}=URL"
            )
            return "http://unresolved.invalid"  # never asked: the problem refuses the manifest
        has_path = urlsplit(url).path not in {"", "/"}
        return url if has_path else url.rstrip("/") + ref.path

    def agent_url(self, path: FieldPath, peer: PeerSpec) -> str:
        """Find the URL of an agent that is named."""
        name = peer.name or ""
        namespace = peer.namespace or self._manifest.metadata.namespace
        if self.is_mounted:
            return agent_service_url(namespace, name)
        url = (
            self.targets.services.web_url(f"{namespace}/{name}")
            or self.targets.agents.get((namespace, name))
            or self.targets.services.web_url(name)
        )
        if url is None:
            self.add_problem(
                path,
                f"there is no Agent {name} here (namespace {namespace}); "
                f"add its file, or give --service {name}=URL",
            )
        return url or ""  # never asked: the problem refuses the manifest

    def redis_url(self, path: FieldPath) -> str:
        """Find the URL of the manifest's Redis Service."""
        if self._folder is not None:
            return redis_service_url(self._manifest)
        *_, name = names = redis_service_names(self._manifest)
        url = self.targets.services.redis_url(names)
        if url is None:
            option = f"--service {name}=redis://localhost:6379"
            self.add_problem(path, f"Service {name} has no address here; give {option}")
        return url or ""  # never asked: the problem refuses the manifest
