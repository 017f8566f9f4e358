"""A client of a cluster's Agent: finds it by name and reaches it through a port-forward.

Not here: the requests (`remote`), keeping the port-forward open (`cluster.port_forward`).
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from diptych.cli.client.remote import RemoteAgent, agent_at
from diptych.cli.cluster.agents import (
    PORT,
    AgentName,
    AgentObject,
    find_agent,
    is_pod_ready,
    pods_of,
)
from diptych.cli.cluster.errors import NotReady
from diptych.cli.cluster.flags import ClusterFlags
from diptych.cli.cluster.kubectl import Kubectl
from diptych.cli.cluster.port_forward import HOST, port_forward


@asynccontextmanager
async def agent_in_cluster(name: AgentName, flags: ClusterFlags) -> AsyncIterator[RemoteAgent]:
    """Give a client of an Agent while a block lasts.

    Raises `ClusterError` if it does not exist, `NotReady` if none of its pods is ready,
    `ConfigError` if kubectl cannot be used.
    """
    kubectl = Kubectl(flags)
    agent = await asyncio.to_thread(_serving_agent, kubectl, name)
    in_namespace = kubectl.in_namespace(agent.namespace)

    def command(ports: str) -> Sequence[str]:
        return in_namespace.command(
            "port-forward", f"service/{agent.name}", ports, f"--address={HOST}"
        )

    async with (
        port_forward(command, PORT) as forward,
        agent_at(f"http://{HOST}:{forward.port}") as remote,
    ):
        remote.name = f"{agent.namespace}/{agent.name}"
        remote.attach_flags = " ".join((f"--at {remote.name}", *flags.as_arguments))
        remote.tunnel = forward
        yield remote


def _serving_agent(kubectl: Kubectl, name: AgentName) -> AgentObject:
    """Find an Agent that has a ready pod."""
    agent = find_agent(kubectl, name)
    if agent.is_ready:
        return agent
    if not any(map(is_pod_ready, pods_of(kubectl, agent))):
        raise NotReady(f"Agent {agent.namespace}/{agent.name} is not ready: {agent.problem}")
    # The newest revision is not ready, and the one before it still serves.
    sys.stderr.write(f"! {agent.namespace}/{agent.name} is not ready: {agent.problem}\n")
    return agent
