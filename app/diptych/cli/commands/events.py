"""`diptych events`: what a running agent has on record, and its runs as they happen."""

from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import Context, Json, Kubeconfig, Namespace, SessionId

if TYPE_CHECKING:
    from diptych.cli.client.target import Target

DEFAULT_URL = "http://127.0.0.1:8000"


def events(
    place: Annotated[
        str,
        typer.Argument(metavar="URL|AGENT", help="The agent's address, or an Agent of a cluster."),
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
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show what an agent has on record: /memory/events as a table.

    Examples: `diptych events http://127.0.0.1:8001 --session demo`, `diptych events team/helper`
    """
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.commands.attach import followed
    from diptych.cli.signals import run_to_exit_code

    target = Target(place, cluster=ClusterPlace(kubeconfig, context, namespace))
    if run:
        work = followed(target, run, as_json=as_json)
    else:
        work = _shown(target, session, limit, as_json)
    raise typer.Exit(run_to_exit_code(work))


async def _shown(target: "Target", session: str | None, limit: int | None, as_json: bool) -> int:
    from diptych.cli.output.event_table import print_rows
    from diptych.cli.output.timeline import JsonLines

    async with target.reached_elsewhere() as agent:
        records = await agent.memory(session, limit)
    if as_json:
        view = JsonLines()
        for record in records:
            view.show(record)
    elif records:
        print_rows(records)
    else:
        of = f"session {session}" if session else f"the agent at {target.place}"
        typer.echo(f"nothing is on record of {of}", err=True)
    return 0
