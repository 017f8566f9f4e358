"""The document of one Agent of a pool, as the operator hands it over, in a file or by HTTP.

It is JSON:

    {"name", "port", "generation", "manifest": {the resolved Agent}, "access": {as an access file},
     "model"?: {as a model file}, "digest": of all the rest}
"""

import hashlib
import json
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diptych.access.bearer import AGENT_HEADER
from diptych.core.errors import ConfigError, InvalidRequest
from diptych.manifest.documents import SourceLocation
from diptych.manifest.environment import PUBLIC_URL
from diptych.manifest.loader import LocalOptions, load_content
from diptych.manifest.model_file import with_model
from diptych.manifest.references import AGENT_PORT
from diptych.manifest.secret_sources import constant_value
from diptych.manifest.settings import AgentConfig, PeerConfig
from diptych.manifest.validation import validate_manifest
from diptych.ports import ValueProvider


class PooledAgent(BaseModel):
    """One form of an Agent. Of two documents the one of the newer `generation` counts."""

    model_config = ConfigDict(frozen=True, strict=True)  # a newer operator may add fields

    name: str = Field(min_length=1, max_length=63)
    port: int = Field(ge=1, le=65535)
    generation: int
    digest: str
    manifest: dict[str, Any]
    access: dict[str, Any]
    model: dict[str, Any] | None = None

    @property
    def access_text(self) -> str:
        return json.dumps(self.access)

    def runs_as(self, other: "PooledAgent") -> bool:
        """Whether only the callers differ, which a running agent takes up."""
        mine, others = ((each.port, each.manifest, each.model) for each in (self, other))
        return mine == others


def read_pooled_agent(text: bytes, name: str) -> PooledAgent:
    """Read the document of the Agent `name`. Raises `InvalidRequest`."""
    try:
        content = json.loads(text)
        agent = PooledAgent.model_validate(content)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"])) or "the document"
        raise InvalidRequest(f"{place}: {problem['msg']}") from None
    except ValueError:
        raise InvalidRequest("it is not JSON") from None
    if agent.name != name:
        raise InvalidRequest(f"name: must be {name}")
    if agent.digest != document_digest(content):
        raise InvalidRequest("digest: is not that of the document")
    return agent


def document_digest(document: dict[str, Any]) -> str:
    """Return the digest of a document, whatever digest it has."""
    rest = {name: value for name, value in document.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def pooled_config(agent: PooledAgent, access: ValueProvider) -> AgentConfig:
    """Make the configuration of a pooled Agent. Raises `ConfigError`.

    `access` reads its access file. Requests that carry a token of the pool, to peers and to the
    proxies of ModelAPIs, name the Agent.
    """
    content = agent.manifest
    metadata = content.get("metadata") or {}
    namespace, name = metadata.get("namespace", ""), metadata.get("name")
    if name != agent.name:
        raise ConfigError(f"metadata.name: must be {agent.name}, as its document says")
    own_name = f"{namespace}/{name}"
    if agent.model is not None:
        content = with_model(content, agent.model)
    env = validate_manifest(content, SourceLocation("")).spec.container.env
    variables = {each.name: each.value for each in env if each.value is not None}
    environ = {PUBLIC_URL: f"http://{name}.{namespace}:{AGENT_PORT}", **variables}
    [config] = load_content(content, SourceLocation(""), LocalOptions(environ)).resolve([""])
    if commands := [tool.name for tool in config.tools if tool.command]:
        raise ConfigError(
            f"spec.tools: {commands[0]} is a command, which an Agent in a pool cannot have; "
            "serve it as an MCPServer"
        )

    def named(peer: PeerConfig) -> PeerConfig:
        own = constant_value(own_name)
        return replace(peer, headers={**peer.headers, AGENT_HEADER: own}) if peer.token else peer

    return replace(
        config,
        agents=tuple(map(named, config.agents)),
        access=replace(config.access, platform=access),
    )
