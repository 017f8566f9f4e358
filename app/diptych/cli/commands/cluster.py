"""`diptych token` and `purge-sessions`: a token to ask an Agent with, and its sessions' end."""

from typing import Annotated

import typer

from diptych.cli.cluster.kubectl import AgentName, ClusterFlags, Kubectl
from diptych.core.errors import ConfigError


def token(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An Agent of a cluster: [namespace/]name.")
    ],
    cluster: ClusterFlags,
    duration: Annotated[
        str,
        typer.Option(metavar="TIME", help="For how long it is good; the cluster may shorten it."),
    ] = "1h",
) -> None:
    """Print a token to ask an Agent with, for curl and other programs.

    It is a token of the Agent's own ServiceAccount, unless another one is named, for this Agent
    alone. It takes the right to create `serviceaccounts/token` there, as the role `edit` has it.
    The other commands get a token by themselves.

    Example: `curl -H "Authorization: Bearer $(diptych token team/helper)" localhost:8000/v1/models`
    """
    from diptych.cli.cluster.agents import find_agent, request_token

    name = AgentName.parse(agent)
    if name is None:
        raise ConfigError(f"{agent}: must be an Agent's name, or namespace/name")
    kubectl = Kubectl(cluster)
    typer.echo(request_token(kubectl, find_agent(kubectl, name), duration))


def purge_sessions(
    agent: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="The Agent whose sessions they were.")
    ],
    sessions: Annotated[
        str | None,
        typer.Option(
            "--sessions",
            metavar="KEY",
            help="Its status.sessions; without it, sessions stored by the name alone.",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for its processes.")
    ] = 120.0,
) -> None:
    """Delete all sessions and runs of one Agent from the Redis at REDIS_URL.

    The operator runs this for an Agent that is deleted and has `sessions.onDelete: purge`. An Agent
    that still runs would lose its memory.
    """
    import asyncio
    import os

    from diptych.manifest.settings import sessions_prefix
    from diptych.stores.redis.purge import purge

    url = os.environ.get("REDIS_URL")
    namespace, _, name = agent.partition("/")
    if not url or not namespace or not name:
        raise typer.BadParameter("give NAMESPACE/NAME, and the Redis in REDIS_URL")
    prefix = sessions_prefix(namespace, name, sessions)
    deleted = asyncio.run(purge(lambda: url, prefix, patience=patience))
    typer.echo(f"deleted {deleted} keys of {agent}")
