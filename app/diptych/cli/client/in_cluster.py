"""An Agent of the cluster, found by its name and asked through a port-forward.

Not here: the asking (`remote`), keeping the forward up (`forward`).
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from diptych.cli.client.remote import RemoteAgent, agent_at
from diptych.cli.cluster.agents import (
    PORT,
    AgentObject,
    Reference,
    find_agent,
    is_pod_ready,
    pods_of,
)
from diptych.cli.cluster.errors import NotReady
from diptych.cli.cluster.flags import ClusterPlace
from diptych.cli.cluster.kubectl import Kubectl
from diptych.cli.cluster.port_forward import HOST, forwarded


@asynccontextmanager
async def agent_in_cluster(reference: Reference, place: ClusterPlace) -> AsyncIterator[RemoteAgent]:
    """Give an Agent, ready to be asked, for the time of a block.

    Raises `ClusterError` if it is not there, `NotReady` if it takes no work, `ConfigError` if
    kubectl cannot be used.
    """
    kubectl = Kubectl(place)
    agent = await asyncio.to_thread(_usable_agent, kubectl, reference)
    within = kubectl.within(agent.namespace)

    def command(ports: str) -> Sequence[str]:
        return within.command("port-forward", f"service/{agent.name}", ports, f"--address={HOST}")

    async with (
        forwarded(command, PORT) as forward,
        agent_at(f"http://{HOST}:{forward.port}") as remote,
    ):
        remote.name = f"{agent.namespace}/{agent.name}"
        remote.place = " ".join((f"--at {remote.name}", *place.words))
        remote.line = forward
        yield remote


def _usable_agent(kubectl: Kubectl, reference: Reference) -> AgentObject:
    """Find an Agent of which some pod takes work."""
    agent = find_agent(kubectl, reference)
    if agent.is_ready:
        return agent
    if not any(map(is_pod_ready, pods_of(kubectl, agent))):
        raise NotReady(f"Agent {agent.namespace}/{agent.name} is not ready: {agent.trouble}")
    # The newest revision is not ready, and the one before it goes on serving.
    sys.stderr.write(f"! {agent.namespace}/{agent.name} is not ready: {agent.trouble}\n")
    return agent
