"""A `ModelAPI` as a typed value."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from diptych_operator.resources.agent import (
    PROVIDER_URL,
    KeyRef,
    ServiceRef,
    key_refs_in,
    redis_service,
)
from diptych_operator.resources.kinds import MODEL_API, PORT, NamespacedName
from diptych_operator.resources.labels import MODEL_APP, SERVER_APP, selector_labels
from diptych_operator.resources.owner import READY, Owner

SERVER: Final = "-llm"
"""Ends the names of a hosted server's objects; the proxy's end with `-model`."""

_ENGINE_PORTS: Final = {"ollama": 11434, "vllm": 8000, "llamacpp": 8080}
_ADDRESS: Final = ("provider", "endpoint", "apiKey", "headers")


class ModelApi(Owner):
    """A ModelAPI as the API shows it."""

    kind = MODEL_API
    app = MODEL_APP
    component = "model"
    audience_path = "modelapi/"
    suffixes = ("-model", SERVER)

    @property
    def is_proxied(self) -> bool:
        """Whether pods of ours hold the key and pass requests on."""
        return "proxy" in self.spec

    @property
    def verifies_tokens(self) -> bool:
        return self.is_proxied

    @property
    def replicas(self) -> int:
        """How many proxies are wanted."""
        return int(self.spec["proxy"].get("replicas", 1)) if self.is_proxied else 0

    @property
    def hosted(self) -> Mapping[str, Any]:
        """The model server to run; empty if it runs elsewhere."""
        return self.spec.get("hosted") or {}

    @property
    def server_name(self) -> str:
        return self.name + SERVER

    @property
    def server_labels(self) -> dict[str, str]:
        """The labels that select the hosted server's pods."""
        return selector_labels(self.name, SERVER_APP)

    @property
    def server_port(self) -> int:
        return int(self.hosted.get("port") or _ENGINE_PORTS[self.hosted["engine"]])

    @property
    def address(self) -> Mapping[str, Any]:
        """The fields that say where the endpoint is and with which key it is asked."""
        found = {name: self.spec[name] for name in _ADDRESS if name in self.spec}
        if self.hosted:
            host = f"{self.server_name}.{self.namespace}.svc"
            found["endpoint"] = f"http://{host}:{self.server_port}/v1"
        return found

    @property
    def url(self) -> str:
        """The URL of the proxy, or of the hosted server; empty if Agents ask the endpoint."""
        if self.is_proxied:
            return f"http://{self.child_name}.{self.namespace}.svc:{PORT}/v1"
        return str(self.address["endpoint"]) if self.hosted else ""

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs that its proxy asks."""
        return (self.address.get("endpoint") or PROVIDER_URL,)

    @property
    def redis(self) -> Mapping[str, Any]:
        """The Redis that counts its budget; empty if it has none."""
        return (self.spec.get("redis") or {}) if "budget" in self.spec else {}

    @property
    def redis_service(self) -> ServiceRef | None:
        """The Service of its Redis; None if a Secret has the URL, or it has none."""
        return redis_service(self.redis, self.namespace)

    @property
    def key_refs(self) -> tuple[KeyRef, ...]:
        """The keys of Secrets that its proxy reads, each once, sorted."""
        return key_refs_in([self.address, self.redis])

    @property
    def deployment_names(self) -> tuple[str, ...]:
        """The Deployments that it should have."""
        server, proxy = (self.server_name,), (self.child_name,)
        return (*(server if self.hosted else ()), *(proxy if self.is_proxied else ()))

    @property
    def allows_all(self) -> bool:
        """Whether Agents of all namespaces may use it."""
        return bool((self.spec.get("allowedNamespaces") or {}).get("from") == "All")

    @property
    def default(self) -> str | None:
        """The model of Agents that name none."""
        return self.spec.get("default")

    def serves(self, model: str) -> bool:
        """Whether Agents may name a model."""
        models = self.spec.get("models")
        return not models or any(fnmatchcase(model, glob) for glob in models)

    @property
    def fallbacks(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.spec.get("fallbacks") or ())

    @property
    def fallback_refs(self) -> Iterator[NamespacedName]:
        """The ModelAPIs that it falls back to."""
        for entry in self.fallbacks:
            if ref := entry.get("apiRef"):
                yield ref.get("namespace", self.namespace), ref["name"]

    @property
    def ready_port(self) -> int | None:
        if self.is_proxied:
            return PORT
        return self.server_port if self.hosted else None

    @property
    def ready_path(self) -> str:
        return READY if self.is_proxied else "/v1/models"

    @property
    def ready_labels(self) -> Mapping[str, str]:
        return self.selector_labels if self.is_proxied else self.server_labels
