"""Mistakes in ModelAPIs, MCPServers and AgentPools, which the pod and the API both refuse."""

from collections.abc import Iterator
from typing import Any

import yaml

MISTAKES = """
ModelAPI: {models: [a]}
    spec: needs provider, endpoint or hosted
ModelAPI: {endpoint: "http://m", hosted: {engine: vllm, image: a}}
    spec: needs only one of hosted and an endpoint or provider
ModelAPI: {endpoint: "http://m", hosted: {engine: tgi, image: a}}
    spec.hosted.engine: must be "ollama", "vllm" or "llamacpp" (got "tgi")
ModelAPI: {endpoint: "http://m", models: ["gpt-5*"], default: gpt-5-mini}
    spec: default must stand in models, letter for letter
ModelAPI: {endpoint: "http://m", budget: {perDay: {tokens: 1}}, proxy: {}}
    spec: budget needs proxy, which counts, and redis, where its pods count together
ModelAPI: {endpoint: "http://m", budget: {perDay: {tokens: 1}}, redis: {serviceRef: {name: r}}}
    spec: budget needs proxy, which counts, and redis, where its pods count together
ModelAPI: {endpoint: "http://m", budget: {perDay: {cost: "1"}}, proxy: {}, redis: {serviceRef: {name: r}}}
    spec: budget.perDay.cost needs prices: input and output of a million tokens, by model
ModelAPI: {endpoint: "http://m", allowedNamespaces: {from: All}}
    spec: allowedNamespaces needs proxy: the key does not leave its namespace
ModelAPI: {endpoint: "http://m", model: [gpt]}
    spec.model: is not a known field (did you mean "models"?)
ModelAPI: {endpoint: "http://m", apiKey: sk-1}
    spec.apiKey: must be a mapping of fields; write apiKey: {secretKeyRef: {name: models, key: api-key}}
MCPServer: {source: {}}
    spec.source: needs exactly one of remote, containerImage, python, command
MCPServer: {source: {command: [a], python: "a = 1"}}
    spec.source: needs exactly one of remote, containerImage, python, command
MCPServer: {source: {command: [a], packages: [numpy]}}
    spec.source: packages belong to python; remove them, or give python
MCPServer: {source: {command: [" "]}}
    spec.source: command must begin with the name of a program
MCPServer: {source: {remote: {url: "http://t"}}, runtime: {}}
    spec: config and runtime are for a server that runs in the cluster, not for remote
MCPServer: {source: {command: [a]}, config: {arguments: [b]}}
    spec: config.arguments are for containerImage only; command has its own
MCPServer: {source: {containerImage: {ref: a}}, config: {storage: [{path: /a, source: {}}]}}
    spec.config.storage[0].source: needs exactly one of configMap, secret, emptyDir, persistentVolumeClaim
MCPServer: {source: {containerImage: {ref: a}}, runtime: {security: {runAsUser: 0}}}
    spec.runtime.security.runAsUser: must be 1 or more (got 0)
AgentPool: {replicas: 2}
    spec: replicas above 1 need redis: without it each pod knows its own sessions only
AgentPool: {maxAgents: 1001}
    spec.maxAgents: must be 1000 or less (got 1001)
AgentPool: {minAgents: 1}
    spec.minAgents: is not a known field (did you mean "maxAgents"?)
"""  # noqa: E501
"""A kind and its spec, and below it the line that says what is wrong."""


def mistakes() -> list[tuple[str, dict[str, Any], str]]:
    """Return kind, spec and line of each mistake."""
    return [*_mistakes()]


def _mistakes() -> Iterator[tuple[str, dict[str, Any], str]]:
    lines = iter(MISTAKES.strip().split("\n"))
    for written, line in zip(lines, lines, strict=True):
        kind, _, spec = written.partition(": ")
        yield kind, yaml.safe_load(spec), line.strip()
