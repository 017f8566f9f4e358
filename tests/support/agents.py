"""Builders for the operator's tests: Agents, Services, the observed state around them."""

from typing import Any

from diptych_operator.desired.children import Children, Platform, desired_children
from diptych_operator.desired.deployment import PodDefaults
from diptych_operator.desired.network_policy import NetworkSettings
from diptych_operator.desired.references import ObservedState
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.resources.model_api import ModelApi

MODEL = {"name": "gpt-5-mini", "endpoint": "https://models.example.com/v1"}
PLATFORM = Platform(
    PodDefaults("registry.example.com/diptych:1"), NetworkSettings("cluster.local", "system")
)


def agent_object(name: str = "coordinator", namespace: str = "team", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"{name}-1", "generation": 1},
        "spec": {"model": MODEL, **spec},
    }


def agent(name: str = "coordinator", namespace: str = "team", **spec: Any) -> Agent:
    return Agent.read(agent_object(name, namespace, **spec))


def service(name: str, namespace: str = "team", **spec: Any) -> Object:
    ports = [{"port": 8000, "targetPort": "web", "protocol": "TCP"}]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": ports, **spec},
    }


def observed(*others: Agent | Object, **fields: Any) -> ObservedState:
    """Make an observed state with these Agents and Services."""
    agents = {one.namespaced_name: one for one in others if isinstance(one, Agent)}
    services = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one
        for one in others
        if not isinstance(one, Agent)
    }
    return ObservedState(services=services, agents=agents, **fields)


def children(given: Agent, state: ObservedState | None = None) -> Children:
    return desired_children(given, state or ObservedState(), PLATFORM)


def child(one, kind, state=None):
    """Return the desired child of a kind; of ConfigMaps that with the manifest."""
    found = children(one, state).to_apply
    return next(content for content in found if content["kind"] == kind.name)


def settled(deployment: Object) -> Object:
    """The Deployment, all of whose pods are of its newest revision."""
    wanted = deployment["spec"]["replicas"]
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), wanted)
    metadata = {**deployment["metadata"], "generation": 1, "uid": "d-1"}
    return {**deployment, "metadata": metadata, "status": {"observedGeneration": 1, **counts}}


def mcp_server_object(name: str = "calc", namespace: str = "team", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"{name}-1", "generation": 1},
        "spec": {"source": {"command": ["mcp-server-time"]}, **spec},
    }


def mcp_server(name: str = "calc", namespace: str = "team", **spec: Any) -> McpServer:
    return McpServer.read(mcp_server_object(name, namespace, **spec))


def model_api_object(name: str = "house", namespace: str = "platform", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"{name}-1", "generation": 1},
        "spec": {"endpoint": "https://models.example.com/v1", **spec},
    }


def model_api(name: str = "house", namespace: str = "platform", **spec: Any) -> ModelApi:
    return ModelApi.read(model_api_object(name, namespace, **spec))
