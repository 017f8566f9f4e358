"""`diptych resume`: takes up a run that failed or was aborted."""

from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.attach import attach_to_run
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


def resume(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The id of the run that failed or was aborted.")
    ],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="URL|AGENT",
            help="Where it ran: the agent's URL, or an Agent of a cluster.",
        ),
    ] = DEFAULT_URL,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", min=1, help="The most steps from here on; at most the Agent's maxSteps."
        ),
    ] = None,
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Go on where a run failed or was aborted, with no new message, and follow it to its end.

    A new run of the same session takes it up. Calls that were made are not made again. A run can
    be resumed as long as nothing else was asked in its session; resumed again, the same new run is
    shown.

    The exit code is the new run's, as of `diptych attach`; 2 if the run cannot be resumed, 1 if it
    is not known (any more).

    Example: `diptych resume run-1f3a --at team/helper`
    """
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.exits import run_interruptible

    target = Target(at, cluster=ClusterFlags(kubeconfig, context, namespace, as_service_account))
    raise typer.Exit(run_interruptible(_resume(target, run, max_steps, as_json)))


async def _resume(target: "Target", run_id: str, max_steps: int | None, as_json: bool) -> int:
    from diptych.cli.client.failures import RemoteError
    from diptych.core.errors import NotResumable, RequestError

    async with target.connect_remote() as agent:
        try:
            resumed = await agent.resume(run_id, max_steps)
        except RemoteError as error:
            if error.code in (NotResumable.code, "invalid_value"):
                raise RequestError(str(error)) from error
            raise
    return await attach_to_run(target, resumed.run_id, as_json=as_json)
