"""The documents by which an AgentPool's pods know their Agents. Pure.

The pods read them from 16 ConfigMaps, and the operator also hands them over by HTTP
(`diptych.manifest.pooled_agent` reads them). Of two documents of an Agent, the one of the newer
generation counts.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import orjson

from diptych_operator.desired.access import access_content
from diptych_operator.desired.agent_model import model_document
from diptych_operator.desired.children import Platform, check_agent, checked_text
from diptych_operator.desired.references import ObservedState, address
from diptych_operator.desired.resolved_manifest import resolved_manifest
from diptych_operator.resources.agent import Agent, KeyRef
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import NamespacedName, Object

CONFIG_MAPS: Final = 16
_OPEN: Final[Object] = {"issuers": [], "grants": [], "agents": []}

Need: TypeAlias = KeyRef | NamespacedName
"""Something that an Agent's pod must mount: a key of a Secret or ConfigMap, or a token.

A token's audience is its namespace and what follows: an Agent's name, or `modelapi/NAME`.
"""


@dataclass(frozen=True, slots=True)
class Document:
    """One form of an Agent; `content` is what the pods read."""

    content: Object

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def port(self) -> int:
        return int(self.content["port"])

    @property
    def digest(self) -> str:
        return str(self.content["digest"])

    @property
    def text(self) -> str:
        return orjson.dumps(self.content).decode()

    def says(self, content: Mapping[str, Any]) -> bool:
        """Whether it has this content, whatever its generation."""
        rest = {name: v for name, v in self.content.items() if name not in {"digest", "generation"}}
        return rest == content

    @property
    def needs(self) -> frozenset[Need]:
        """The keys and tokens that the pods must mount for it."""
        manifest = self.content["manifest"]
        metadata = manifest["metadata"]
        named = {name: metadata[name] for name in ("namespace", "name")}
        agent = Agent.read({"metadata": {**named, "uid": ""}, "spec": manifest["spec"]})
        files = map(_need_of_file, _files(self.content.get("model")))
        return frozenset((*agent.key_refs, *(peer.name for peer in agent.peers), *files))


def _files(value: object) -> Iterator[str]:
    """Yield the mounted files in a model."""
    match value:
        case {"file": str(path)}:
            yield path
        case dict():
            yield from (path for inner in value.values() for path in _files(inner))
        case list():
            yield from (path for inner in value for path in _files(inner))


def _need_of_file(path: str) -> Need:
    folder, _, rest = path.partition("/")
    if folder == "tokens":  # of the proxy of a ModelAPI
        kind, namespace, name = rest.split(".", 2)
        return namespace, f"{kind}/{name}"
    name, _, key = rest.partition("/")
    return KeyRef("Secret", name, key)


def hosted(agent: Agent, pool: AgentPool | None) -> Agent:
    """Return an Agent with the Redis of its pool, if it names none."""
    if pool is None or agent.redis or not pool.redis:
        return agent
    sessions = {**(agent.spec.get("sessions") or {}), "redis": pool.redis}
    return replace(agent, spec={**agent.spec, "sessions": sessions})


def content_of(agent: Agent, observed: ObservedState, platform: Platform, port: int) -> Object:
    """Return the content of an Agent's document, but for its generation and digest.

    Raises `ManifestError`, and `ValueError` for an invalid URL.
    """
    check_agent(agent, observed, platform)
    for url in (*agent.urls, *agent.variable_urls):
        address(url, agent.namespace, platform.network.domain)
    manifest = resolved_manifest(agent, observed, platform.policy)
    checked_text(manifest)
    access = _OPEN
    if observed.issuer and not agent.is_open:
        access = access_content(agent, observed.callers, observed.issuer, platform.access)
    content = {"name": agent.name, "port": port, "manifest": manifest, "access": access}
    return {**content, "model": model_document(agent)} if agent.model_apis else content


def newer(content: Object, live: Document | None, now: int) -> Document:
    """Return the document of a content; the live one if that says the same.

    `now` is a Unix time: it makes the generation grow even if an Agent is deleted and made again.
    """
    if live is not None and live.says(content):
        return live
    generation = max(now, live.content["generation"] + 1) if live else now
    rest = {**content, "generation": generation}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Document({**rest, "digest": hashlib.sha256(text.encode()).hexdigest()})


def config_map_name(pool: AgentPool, number: int) -> str:
    """Name one of the pool's ConfigMaps with documents."""
    return f"{pool.child_name}-{number}"


def live_documents(pool: AgentPool, config_maps: Iterable[Object]) -> dict[str, Document]:
    """Read the documents in a pool's live ConfigMaps, by Agent."""
    names = {config_map_name(pool, number) for number in range(CONFIG_MAPS)}
    found = (one for one in config_maps if one["metadata"]["name"] in names)
    return {document.name: document for one in found for document in _documents(one)}


def live_document(config_maps: Iterable[Object], agent: str) -> Document | None:
    """Read the document of one Agent in the live ConfigMaps of its pool."""
    for one in config_maps:
        if (text := (one.get("data") or {}).get(f"{agent}.json")) and (document := _read(text)):
            return document if document.name == agent else None
    return None


def _documents(config_map: Object) -> Iterator[Document]:
    for text in (config_map.get("data") or {}).values():
        if document := _read(text):
            yield document


def _read(text: str) -> Document | None:
    """Read a document; None if somebody has edited it beyond reading."""
    try:
        content = orjson.loads(text)
        if content.keys() >= {"name", "port", "generation", "digest", "manifest", "access"}:
            return Document(content)
    except (AttributeError, ValueError):
        pass
    return None
