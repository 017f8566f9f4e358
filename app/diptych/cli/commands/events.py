"""`diptych events`: the recorded events of an agent that runs."""

from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import (
    DEFAULT_URL,
    AsServiceAccount,
    Context,
    Json,
    Kubeconfig,
    Namespace,
    SessionId,
)

if TYPE_CHECKING:
    from diptych.cli.client.target import Target


def events(
    address: Annotated[
        str,
        typer.Argument(metavar="URL|AGENT", help="The agent's URL, or an Agent of a cluster."),
    ] = DEFAULT_URL,
    session: SessionId = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Only the last so many events.", show_default="1000"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", "--follow", metavar="ID", help="Follow this run, live, to its end."),
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option("--tree", metavar="ID", help="This run and the runs below it, at all agents."),
    ] = None,
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Show the recorded events of an agent: /memory/events as a table.

    Examples: `diptych events http://127.0.0.1:8001 --session demo`, `diptych events team/helper`
    """
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.commands.attach import attach_to_run
    from diptych.cli.exits import run_interruptible

    target = Target(
        address, cluster=ClusterFlags(kubeconfig, context, namespace, as_service_account)
    )
    if run:
        command = attach_to_run(target, run, as_json=as_json)
    elif tree:
        command = _print_tree(target, tree, as_json)
    else:
        command = _print_events(target, session, limit, as_json)
    raise typer.Exit(run_interruptible(command))


async def _print_tree(target: "Target", run_id: str, as_json: bool) -> int:
    import json

    from diptych.cli.exit_codes import COMPLETED
    from diptych.cli.output.tree_view import print_tree

    async with target.connect_remote() as agent:
        tree = await agent.tree(run_id)
    if as_json:
        typer.echo(json.dumps(tree))
    else:
        print_tree(tree)
    return COMPLETED


async def _print_events(
    target: "Target", session: str | None, limit: int | None, as_json: bool
) -> int:
    from diptych.cli.exit_codes import COMPLETED
    from diptych.cli.output.events import print_event_table
    from diptych.cli.output.json_lines import JsonLines

    async with target.connect_remote() as agent:
        records = await agent.recorded_events(session, limit)
    if as_json:
        renderer = JsonLines()
        for record in records:
            renderer.render(record)
    elif records:
        print_event_table(records)
    else:
        whose = f"session {session}" if session else f"the agent at {target.address}"
        typer.echo(f"nothing is on record of {whose}", err=True)
    return COMPLETED
