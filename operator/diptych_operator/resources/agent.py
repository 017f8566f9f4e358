"""An `Agent` as a typed value."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from diptych_operator.resources.kinds import (
    AGENT,
    MCP_SERVER,
    PORT,
    SCHEDULES,
    NamespacedName,
    Object,
)
from diptych_operator.resources.labels import AGENT_APP
from diptych_operator.resources.owner import ManifestError, Owner

KeyKind: TypeAlias = Literal["Secret", "ConfigMap"]

REDIS_PORT: Final = 6379

_KEY_FIELDS: Mapping[str, KeyKind] = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
_CLUSTER_FIELDS = {
    *("container", "podTemplate", "metadata"),
    *("network", "allowedNamespaces", "replicas", "schedules", "hosting"),
}
_ASKED = {
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    *(
        name
        for upper in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        for name in (upper, upper.lower())
    ),
}
"""Variables of the container whose URLs its pod asks."""
PROVIDER_URL = "https://api.model-provider.invalid"
"""Stands for the endpoint of a model that names its provider only: a public host, port 443."""
_MAX_PORT = 65535
_HTTP_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:(?P<port>[1-9]\d{0,4}))?(/[^\s$]*)?", re.ASCII)
_WITHOUT_KEYS = {*_CLUSTER_FIELDS, "outputSchema"}


@dataclass(frozen=True, slots=True, order=True)
class KeyRef:
    """A reference to one key of a Secret or ConfigMap, which the pod reads from a mounted file."""

    kind: KeyKind
    name: str
    key: str

    @property
    def file(self) -> str:
        """The file's path in the pod, relative to the mounted folder."""
        return f"{self.kind.lower()}s/{self.name}/{self.key}"


@dataclass(frozen=True, slots=True)
class ServiceRef:
    """A port of a Service, in any namespace; one of another namespace may need its consent."""

    name: NamespacedName
    port: int
    needs_consent: bool = False


@dataclass(frozen=True, slots=True)
class PeerRef:
    """An Agent that another one may delegate to; the model knows it as `visible_name`."""

    name: NamespacedName
    visible_name: str
    shares_context: bool


@dataclass(frozen=True, slots=True)
class Agent(Owner):
    """An Agent as the API shows it."""

    kind = AGENT
    app = AGENT_APP
    component = "agent"
    suffixes = ("", SCHEDULES)

    @property
    def ready_port(self) -> int:
        return PORT

    @property
    def url(self) -> str:
        """The Agent's URL inside the cluster; its identity in a delegation's call path."""
        return agent_url(self.namespaced_name)

    @property
    def expose(self) -> Mapping[str, Any]:
        """How it is reached from outside of the cluster; empty if it is not."""
        return self.spec.get("expose") or {}

    @property
    def shown_url(self) -> str:
        """The URL for people: that outside of the cluster, if it has one."""
        if not self.expose:
            return self.url
        return f"{'https' if 'tls' in self.expose else 'http'}://{self.expose['host']}"

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas", 1))

    @property
    def pool(self) -> str | None:
        """The AgentPool of its namespace that it runs in; None if it has pods of its own."""
        return (self.spec.get("hosting") or {}).get("pool")

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches its pods may do everything."""
        return (self.spec.get("access") or {}).get("mode") == "open"

    @property
    def verifies_tokens(self) -> bool:
        return not self.is_open

    @property
    def container(self) -> Mapping[str, Any]:
        return self.spec.get("container") or {}

    @property
    def own_containers(self) -> frozenset[str]:
        """The names of the containers in its `podTemplate`."""
        pod = (self.spec.get("podTemplate") or {}).get("spec") or {}
        containers = (*pod.get("initContainers", ()), *pod.get("containers", ()))
        return frozenset(one["name"] for one in containers if "name" in one)

    @property
    def pod_spec_fields(self) -> dict[str, Any]:
        """The fields of the spec that the pod reads."""
        return {name: value for name, value in self.spec.items() if name not in _CLUSTER_FIELDS}

    @property
    def model(self) -> Mapping[str, Any]:
        return self.spec.get("model") or {}

    @property
    def models(self) -> tuple[Mapping[str, Any], ...]:
        """Its model and the fallbacks."""
        return (self.model, *(self.model.get("fallbacks") or ())) if self.model else ()

    @property
    def model_apis(self) -> tuple[NamespacedName, ...]:
        """The ModelAPIs that it refers to, each once; the first is its model's, if that has one."""
        refs = [entry["apiRef"] for entry in self.models if "apiRef" in entry]
        return tuple(
            dict.fromkeys((ref.get("namespace", self.namespace), ref["name"]) for ref in refs)
        )

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.spec.get("tools", ()))

    @property
    def mcp_servers(self) -> tuple[NamespacedName, ...]:
        """The MCPServers that its tools refer to."""
        return tuple(
            (ref.get("namespace", self.namespace), ref["name"])
            for tool in self.tools
            if (ref := tool.get("ref")) and not is_foreign(ref)
        )

    @property
    def schedules(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.spec.get("schedules") or ())

    @property
    def redis(self) -> Mapping[str, Any]:
        """The Redis that keeps its sessions; empty if they live in the pod's memory."""
        return (self.spec.get("sessions") or {}).get("redis") or {}

    @property
    def sessions_key(self) -> str:
        """The key of its sessions in the Redis: its uid, unless it adopts another Agent's."""
        return str((self.spec.get("sessions") or {}).get("adopt") or self.uid)

    @property
    def purges_sessions(self) -> bool:
        """Whether its sessions are deleted with it."""
        sessions = self.spec.get("sessions") or {}
        return bool(self.redis) and sessions.get("onDelete") == "purge"

    @property
    def service_refs(self) -> tuple[ServiceRef, ...]:
        """The Services that it refers to: those of its tool servers, and that of its Redis."""
        refs = [
            self.tool_service(tool["serviceRef"]) for tool in self.tools if "serviceRef" in tool
        ]
        if redis := self.redis_service:
            refs.append(redis)
        return tuple(refs)

    @property
    def redis_service(self) -> ServiceRef | None:
        """The Service of its Redis; None if a Secret has the URL, or it has none."""
        return redis_service(self.redis, self.namespace)

    def tool_service(self, ref: Mapping[str, Any]) -> ServiceRef:
        """Read the `serviceRef` of a tool server, with the manifest's defaults."""
        namespace = ref.get("namespace", self.namespace)
        name = namespace, ref["name"]
        return ServiceRef(name, ref.get("port", PORT), namespace != self.namespace)

    @property
    def peers(self) -> tuple[PeerRef, ...]:
        return tuple(self.peer(entry) for entry in self.spec.get("agents", ()) if "name" in entry)

    def peer(self, entry: Mapping[str, Any]) -> PeerRef:
        """Read an entry of `spec.agents` that names an Agent, with the manifest's defaults."""
        return PeerRef(
            name=(entry.get("namespace", self.namespace), entry["name"]),
            visible_name=entry.get("as", entry["name"]),
            shares_context=entry.get("shareContext", True),
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """All URLs of the manifest, each once, in its order."""
        access = self.spec.get("access") or {}
        issuers = [one for one in access.get("issuers") or () if not one.get("jwks")]
        authorizations = [tool["auth"] for tool in self.tools if "auth" in tool]
        entries = (
            *self.models,
            *self.tools,
            *({"url": auth["issuer"]} for auth in authorizations if "issuer" in auth),
            *self.spec.get("agents", ()),
            *issuers,
            *self.spec.get("hooks", ()),
        )
        urls = [
            entry.get("endpoint")
            or entry.get("url")
            or (PROVIDER_URL if "provider" in entry else "")
            for entry in entries
        ]
        return tuple(dict.fromkeys(url for url in urls if url))

    @property
    def variable_urls(self) -> tuple[str, ...]:
        """The URLs of its collector and its proxy, where its variables say them in plain words.

        One that Kubernetes has to fill in, or that is no URL, is not known here.
        """
        given = [one for one in self.container.get("env") or () if one.get("name") in _ASKED]
        values = [str(one.get("value") or "") for one in given]
        return tuple(dict.fromkeys(filter(_is_http_url, values)))

    @property
    def key_refs(self) -> tuple[KeyRef, ...]:
        """All keys of Secrets and ConfigMaps that the pod reads, each once, sorted."""
        return key_refs_in(
            [value for name, value in self.spec.items() if name not in _WITHOUT_KEYS]
        )


def redis_service(redis: Mapping[str, Any], namespace: str) -> ServiceRef | None:
    """Return the Service of a Redis; None if a Secret has its URL, or there is none."""
    ref = redis.get("serviceRef")
    if ref is None:
        return None
    service = ref.get("namespace", namespace), ref["name"]
    return ServiceRef(service, ref.get("port", REDIS_PORT))


def is_foreign(ref: Mapping[str, Any]) -> bool:
    """Whether the `ref` of a tool server is no MCPServer of ours."""
    own = MCP_SERVER.group, MCP_SERVER.name
    return "apiGroup" in ref and (ref["apiGroup"], ref.get("kind")) != own


def _is_http_url(text: str) -> bool:
    found = _HTTP_URL.fullmatch(text)
    return found is not None and int(found["port"] or 0) <= _MAX_PORT


def agent_url(name: NamespacedName) -> str:
    """Return the base URL of an Agent, whether or not it exists."""
    namespace, own_name = name
    return f"http://{own_name}.{namespace}:{PORT}"


def ready_status(content: Object | None) -> str:
    """Return the status of an Agent's Ready condition; "Unknown" if it has none."""
    conditions = ((content or {}).get("status") or {}).get("conditions", ())
    return next((c["status"] for c in conditions if c["type"] == "Ready"), "Unknown")


_BAD_STATUS: Mapping[str, str] = {
    "Accepted": "False",
    "ResolvedRefs": "False",
    "Available": "False",
    "Ready": "False",
    "Degraded": "True",
    "ToolsDrifted": "True",
    "Drifted": "True",
    "Stalled": "True",
}


def bad_conditions(content: Object) -> tuple[tuple[str, str], ...]:
    """Return type and reason of each condition that tells of something wrong.

    An Agent that is scaled to 0 is not available, as it should be.
    """
    conditions = (content.get("status") or {}).get("conditions", ())
    return tuple(
        (c["type"], c["reason"])
        for c in conditions
        if _BAD_STATUS.get(c["type"]) == c["status"] and c["reason"] != "ScaledToZero"
    )


def key_refs_in(value: object) -> tuple[KeyRef, ...]:
    """Return all references to keys in JSON, each once, sorted."""
    return tuple(sorted(set(_key_refs(value))))


def _key_refs(value: object) -> Iterator[KeyRef]:
    if isinstance(value, Mapping):
        for field, inner in value.items():
            if field in _KEY_FIELDS:
                yield KeyRef(_KEY_FIELDS[field], inner["name"], inner["key"])
            else:
                yield from _key_refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _key_refs(inner)


class ExposeError(ManifestError):
    """A manifest that asks to be exposed as the platform does not let it.

    Its former route, and the ingress rule for it, are removed.
    """
