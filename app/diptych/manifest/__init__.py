"""The models of the manifests: a module for each kind, and for each part of an Agent."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from diptych.manifest.agent import KIND, REFERENCES, AgentManifest, AgentSpec
from diptych.manifest.agent_pool import AgentPoolManifest
from diptych.manifest.mcp_server import McpServerManifest
from diptych.manifest.metadata import API_VERSION, Metadata
from diptych.manifest.model_api import ModelApiManifest

Manifest: TypeAlias = AgentManifest | ModelApiManifest | McpServerManifest | AgentPoolManifest
MANIFESTS: Final[Mapping[str, type[Manifest]]] = {
    KIND: AgentManifest,
    "ModelAPI": ModelApiManifest,
    "MCPServer": McpServerManifest,
    "AgentPool": AgentPoolManifest,
}
"""The model of each kind."""

__all__ = [
    "API_VERSION",
    "KIND",
    "MANIFESTS",
    "REFERENCES",
    "AgentManifest",
    "AgentPoolManifest",
    "AgentSpec",
    "Manifest",
    "McpServerManifest",
    "Metadata",
    "ModelApiManifest",
]
