"""Where Services and agents are found: on a laptop by `--service name=url`, in a cluster by name.

Not here: which field refers to which Service (`resolving`).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from diptych.config.manifest import AgentManifest
from diptych.config.manifest.field_types import url_problem

_CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_REDIS = re.compile(
    r"(?:rediss?://)?(?:\[[0-9a-fA-F:.]+\]|[-._a-zA-Z0-9]+)(?::([0-9]{1,5}))?(?:/[0-9]*)?"
)
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Services:
    """Addresses by name or `namespace/name`: URLs of the web, and places where a Redis is."""

    addresses: Mapping[str, str] = field(default_factory=dict)

    def web(self, name: str) -> str | None:
        """Find the URL of a Service that is no Redis."""
        found = self.addresses.get(name)
        return None if found is None or _is_redis(found) else found

    def redis(self, names: Collection[str]) -> str | None:
        """Find the URL of a Redis under the first of these names that is known."""
        found = next(filter(None, map(self.addresses.get, names)), None)
        return found if found is None or _is_redis(found) else f"redis://{found}"

    def problems(self, redis: Collection[str]) -> list[str]:
        """Say which addresses are none; `redis` names the Services behind which one is wanted."""
        lines = []
        for name, address in self.addresses.items():
            of_redis = name in redis or _is_redis(address)
            if problem := _redis_problem(address) if of_redis else url_problem(address):
                lines.append(f"--service {name}: {problem}")
        return lines


def redis_names(manifest: AgentManifest) -> tuple[str, ...]:
    """Name the Service of a manifest's Redis, if it has one, as `--service` may name it."""
    redis = manifest.spec.sessions.redis
    if redis is None or redis.service_ref is None:
        return ()
    ref = redis.service_ref
    return f"{ref.namespace or manifest.metadata.namespace}/{ref.name}", ref.name


def redis_in_cluster(manifest: AgentManifest) -> str:
    """Give the URL of a manifest's Redis Service as its pods reach it; "" if it has none."""
    redis = manifest.spec.sessions.redis
    if redis is None or redis.service_ref is None:
        return ""
    ref = redis.service_ref
    return f"redis://{ref.name}.{ref.namespace or manifest.metadata.namespace}:{ref.port}"


def base_url(url: str) -> str:
    """Turn an agent card's URL into its agent's; any other URL is that already."""
    for card in _CARD_PATHS:
        url = url.removesuffix(card)
    return url.rstrip("/")


def _is_redis(address: str) -> bool:
    return address.startswith(("redis://", "rediss://"))


def _redis_problem(address: str) -> str | None:
    if "@" in address:
        return "must not hold a user or password; use sessions.redis.urlFrom for that"
    found = _REDIS.fullmatch(address)
    if found is None or not 0 < int(found[1] or 1) <= _MAX_PORT:
        return "must be where a Redis is, such as redis://localhost:6379 or localhost:6379"
    return None
