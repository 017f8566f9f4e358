"""The models of the `Agent` manifest, one module for each part of it."""

from diptych.manifest.agent import (
    API_VERSION,
    KIND,
    REFERENCES,
    AgentManifest,
    AgentSpec,
    Metadata,
)

__all__ = ["API_VERSION", "KIND", "REFERENCES", "AgentManifest", "AgentSpec", "Metadata"]
