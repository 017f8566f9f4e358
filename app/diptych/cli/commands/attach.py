"""`diptych attach`: a run that goes on somewhere, shown from its beginning to its end."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.events import DEFAULT_URL
from diptych.cli.commands.options import Context, Json, Kubeconfig, Namespace

if TYPE_CHECKING:
    from diptych.cli.client.target import Target


def attach(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's id; replies bear it as X-Run-ID.")
    ],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="URL|AGENT",
            help="Where it runs: the agent's address, or an Agent of a cluster.",
        ),
    ] = DEFAULT_URL,
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Follow a run: what has happened, and what happens, until it ends.

    A connection that breaks is made anew, and goes on where it was. Ctrl-C stops looking; the run
    goes on, and what is said then shows it again.

    The exit code is the run's: 0 if it completed, 1 if it failed or is not known (any more), 3 if
    it ran out of steps, 130 if it was aborted, or you stopped looking.

    Example: `diptych attach run-1f3a --at team/helper`
    """
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.signals import run_to_exit_code

    target = Target(at, cluster=ClusterPlace(kubeconfig, context, namespace))
    raise typer.Exit(run_to_exit_code(followed(target, run, as_json=as_json)))


async def followed(target: "Target", run_id: str, *, as_json: bool) -> int:
    """Show a run to its end, and give the exit code that this end has.

    Whoever is cancelled before is told how to go on.
    """
    from diptych.cli.follow import EXIT_CODES, attend
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.timeline import JsonLines, Timeline

    async with target.reached_elsewhere() as agent:
        screen = Screen()
        view = JsonLines() if as_json else Timeline(screen, question=True)
        try:
            return EXIT_CODES[await attend(agent, run_id, view)]
        except asyncio.CancelledError:
            screen.line(("! ", "yellow"), agent.how_to_go_on(run_id))
            raise
