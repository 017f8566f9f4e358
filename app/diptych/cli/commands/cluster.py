"""`diptych token`: prints a token to ask an Agent of a cluster with."""

from typing import Annotated

import typer

from diptych.cli.commands.options import AsServiceAccount, Context, Kubeconfig, Namespace


def token(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="An Agent of a cluster: [namespace/]name.")
    ],
    duration: Annotated[
        str,
        typer.Option(metavar="TIME", help="For how long it is good; the cluster may shorten it."),
    ] = "1h",
    as_service_account: AsServiceAccount = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Print a token to ask an Agent with, for curl and other programs.

    It is a token of the Agent's own ServiceAccount, unless another one is named, for this Agent
    alone. It takes the right to create `serviceaccounts/token` there, as the role `edit` has it.
    The other commands get a token by themselves.

    Example: `curl -H "Authorization: Bearer $(diptych token team/helper)" localhost:8000/v1/models`
    """
    from diptych.cli.cluster.agents import AgentName, find_agent
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.cluster.kubectl import Kubectl
    from diptych.cli.cluster.tokens import request_token

    name = AgentName.require(agent)
    kubectl = Kubectl(ClusterFlags(kubeconfig, context, namespace, as_service_account))
    typer.echo(request_token(kubectl, find_agent(kubectl, name), duration))
