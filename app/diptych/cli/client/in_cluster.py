"""A client of a cluster's Agent: finds it by name and reaches it through a port-forward."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from diptych.cli.client.bearer import BearerToken, token_of_environment
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
from diptych.cli.cluster.tokens import request_token


@asynccontextmanager
async def agent_in_cluster(name: AgentName, flags: ClusterFlags) -> AsyncIterator[RemoteAgent]:
    """Give a client of an Agent while a block lasts.

    Raises `ClusterError` if it does not exist or no token can be had, `NotReady` if none of its
    pods is ready, `ConfigError` if kubectl cannot be used.
    """
    kubectl = Kubectl(flags)
    agent = await asyncio.to_thread(_serving_agent, kubectl, name)
    in_namespace = kubectl.in_namespace(agent.namespace)
    token = await _token(kubectl, agent)

    def command(ports: str) -> Sequence[str]:
        return in_namespace.command(
            "port-forward", f"service/{agent.name}", ports, f"--address={HOST}"
        )

    async with (
        port_forward(command, PORT) as forward,
        agent_at(f"http://{HOST}:{forward.port}", token) as remote,
    ):
        remote.name = f"{agent.namespace}/{agent.name}"
        account = flags.service_account
        as_whom = (f"--as-service-account={account}",) if account else ()
        remote.attach_flags = " ".join((f"--at {remote.name}", *flags.as_arguments, *as_whom))
        remote.tunnel = forward
        yield remote


async def _token(kubectl: Kubectl, agent: AgentObject) -> BearerToken | None:
    """Give what proves who asks; None for an Agent that is open to everybody."""
    if agent.is_open:
        return None
    if kubectl.flags.service_account is None and (given := token_of_environment()):
        return given
    token = BearerToken(lambda: request_token(kubectl, agent))
    await token.current()  # if there is none to be had, that is said first
    return token


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
