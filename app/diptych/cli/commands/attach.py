"""`diptych attach`: shows a run that was started elsewhere, from its beginning to its end."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import (
    DEFAULT_URL,
    AsServiceAccount,
    Context,
    Json,
    Kubeconfig,
    Namespace,
)

if TYPE_CHECKING:
    from diptych.cli.client.target import Target


def attach(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The run's id; responses have it as X-Run-ID.")
    ],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="URL|AGENT",
            help="Where it runs: the agent's URL, or an Agent of a cluster.",
        ),
    ] = DEFAULT_URL,
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Follow a run: first what has happened, then what happens, until it ends.

    A connection that breaks is opened again, and the run is shown from where it was. Ctrl-C ends
    the command, not the run; the command that shows the run again is printed.

    The exit code is the run's: 0 if it completed, 1 if it failed or is not known (any more), 3 if
    it ran out of steps, 130 if it was aborted, or you pressed Ctrl-C.

    Example: `diptych attach run-1f3a --at team/helper`
    """
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.exits import run_interruptible

    target = Target(at, cluster=ClusterFlags(kubeconfig, context, namespace, as_service_account))
    raise typer.Exit(run_interruptible(attach_to_run(target, run, as_json=as_json)))


async def attach_to_run(target: "Target", run_id: str, *, as_json: bool) -> int:
    """Render a run until it ends, and give its exit code.

    On cancellation the command that follows the run again is printed.
    """
    from diptych.cli.exit_codes import EXIT_CODE_BY_STATUS
    from diptych.cli.follow import follow_run
    from diptych.cli.output.json_lines import JsonLines
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.timeline import Timeline

    async with target.connect_remote() as agent:
        screen = Screen()
        renderer = JsonLines() if as_json else Timeline(screen, question=True)
        try:
            return EXIT_CODE_BY_STATUS[await follow_run(agent, run_id, renderer)]
        except asyncio.CancelledError:
            screen.print_line(("! ", "yellow"), agent.attach_hint(run_id))
            raise
