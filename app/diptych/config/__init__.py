"""Configuration: one `AgentConfig` from a manifest, from variables, or from Python arguments."""
