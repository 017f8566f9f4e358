"""Configuration: manifests, environment variables and Python arguments, made one `AgentConfig`."""
