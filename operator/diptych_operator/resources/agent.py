"""An `Agent` as a typed value: what the operator reads of a manifest.

The fields and their rules stand in one place, the pod's manifest models; the CRD is generated
from them, and the API has checked every Agent against it. So nothing is checked again here.

Not here: where its references lead (`references`), what is made of it (`children`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from diptych_operator.resources.kinds import PORT, Name, Object

RefKind: TypeAlias = Literal["Secret", "ConfigMap"]

REDIS_PORT: Final = 6379

_REF_FIELDS: Mapping[str, RefKind] = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
_FOR_THE_CLUSTER = {"container", "podTemplate", "network", "allowedNamespaces", "replicas"}
_NO_REFERENCES = {*_FOR_THE_CLUSTER, "outputSchema"}


@dataclass(frozen=True, slots=True, order=True)
class KeyRef:
    """A reference to one key, which the pod reads from a mounted file."""

    kind: RefKind
    name: str
    key: str

    @property
    def file(self) -> str:
        """Where the pod finds it, below the folder of references."""
        return f"{self.kind.lower()}s/{self.name}/{self.key}"


@dataclass(frozen=True, slots=True)
class ServiceRef:
    """A port of a Service, in any namespace."""

    service: Name
    port: int


@dataclass(frozen=True, slots=True)
class PeerRef:
    """An Agent that another one may delegate to; `visible_name` is what the model calls it."""

    agent: Name
    visible_name: str
    shares_context: bool


@dataclass(frozen=True, slots=True)
class Agent:
    """An Agent, as the API shows it; `spec` and `status` are its content."""

    namespace: str
    name: str
    uid: str
    generation: int
    is_going: bool
    spec: Mapping[str, Any]
    status: Mapping[str, Any]

    @property
    def full_name(self) -> Name:
        return self.namespace, self.name

    @property
    def url(self) -> str:
        """Where it is reached inside the cluster; its identity in a delegation's call path."""
        return agent_url(self.full_name)

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas", 1))

    @property
    def container(self) -> Mapping[str, Any]:
        return self.spec.get("container") or {}

    @property
    def for_the_pod(self) -> dict[str, Any]:
        """The part of the spec that the pod needs."""
        return {name: v for name, v in self.spec.items() if name not in _FOR_THE_CLUSTER}

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.spec.get("tools", ()))

    @property
    def redis(self) -> Mapping[str, Any]:
        """Where its runs are kept besides the pods' memory; empty if nowhere."""
        return (self.spec.get("sessions") or {}).get("redis") or {}

    @property
    def services(self) -> tuple[ServiceRef, ...]:
        """All Services that it refers to: those of its tool servers, and that of its Redis."""
        refs = [self.tool_service(t["serviceRef"]) for t in self.tools if "serviceRef" in t]
        if given := self.redis.get("serviceRef"):
            service = given.get("namespace", self.namespace), given["name"]
            refs.append(ServiceRef(service, given.get("port", REDIS_PORT)))
        return tuple(refs)

    def tool_service(self, given: Mapping[str, Any]) -> ServiceRef:
        """Read a tool server's serviceRef; what is absent has the manifest's defaults."""
        return ServiceRef((self.namespace, given["name"]), given.get("port", PORT))

    @property
    def peers(self) -> tuple[PeerRef, ...]:
        return tuple(self.peer(given) for given in self.spec.get("agents", ()) if "name" in given)

    def peer(self, given: Mapping[str, Any]) -> PeerRef:
        return PeerRef(
            agent=(given.get("namespace", self.namespace), given["name"]),
            visible_name=given.get("as", given["name"]),
            shares_context=given.get("shareContext", True),
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """All URLs that stand in the manifest, in its order."""
        model = self.spec.get("model") or {}
        places = (model, *self.tools, *self.spec.get("agents", ()))
        found = [place.get("endpoint") or place.get("url") for place in places]
        return tuple(dict.fromkeys(url for url in found if url))

    @property
    def keys(self) -> tuple[KeyRef, ...]:
        """All keys of Secrets and ConfigMaps that the pod reads, sorted."""
        parts = [value for name, value in self.spec.items() if name not in _NO_REFERENCES]
        return tuple(sorted(set(_keys(parts))))


def agent_of(content: Object) -> Agent:
    """Read an Agent from the API's object."""
    metadata = content["metadata"]
    return Agent(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        is_going="deletionTimestamp" in metadata,
        spec=content.get("spec") or {},
        status=content.get("status") or {},
    )


def agent_url(name: Name) -> str:
    """Give the base URL of an Agent, whether it is there or not."""
    namespace, agent = name
    return f"http://{agent}.{namespace}:{PORT}"


def _keys(value: object) -> Iterator[KeyRef]:
    if isinstance(value, Mapping):
        for field, inner in value.items():
            if field in _REF_FIELDS:
                yield KeyRef(_REF_FIELDS[field], inner["name"], inner["key"])
            else:
                yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)
