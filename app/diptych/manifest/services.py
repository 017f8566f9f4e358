"""The addresses of Services: on a laptop from `--service name=url`, in a cluster by their names."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from diptych.manifest import AgentManifest
from diptych.manifest.urls import url_problem

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
