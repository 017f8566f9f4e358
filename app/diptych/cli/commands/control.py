"""`diptych steer`, `follow-up`, `queue` and `cancel`: what reaches a run while it goes on."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych.cli.commands.options import (
    DEFAULT_URL,
    AsServiceAccount,
    At,
    Context,
    Json,
    Kubeconfig,
    Namespace,
    RunId,
)

if TYPE_CHECKING:
    from diptych.cli.client.target import Target

_Text = Annotated[str, typer.Argument(metavar="TEXT", help="The message.")]


def steer(
    run: RunId,
    text: _Text,
    at: At = DEFAULT_URL,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Add a message to the conversation of a run, before the model is asked again.

    Calls that have not begun are skipped. A run that has ended takes none: exit code 1.

    Example: `diptych steer run-1f3a "only the cheapest one" --at team/helper`
    """
    from diptych.cli.exits import run_interruptible

    target = _target(at, kubeconfig, context, namespace, as_service_account)
    raise typer.Exit(run_interruptible(_send(target, run, text, is_follow_up=False)))


def follow_up(
    run: RunId,
    text: _Text,
    at: At = DEFAULT_URL,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Keep a message for when a run has its answer: it begins the run's next turn.

    A run that has ended takes none: exit code 1. `diptych run --session` goes on in its session.

    Example: `diptych follow-up run-1f3a "and in Rome?" --at team/helper`
    """
    from diptych.cli.exits import run_interruptible

    target = _target(at, kubeconfig, context, namespace, as_service_account)
    raise typer.Exit(run_interruptible(_send(target, run, text, is_follow_up=True)))


def queue(
    run: RunId,
    clear: Annotated[bool, typer.Option("--clear", help="Drop what waits.")] = False,
    at: At = DEFAULT_URL,
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Show the messages that wait in a run, or drop them.

    Examples: `diptych queue run-1f3a`, `diptych queue run-1f3a --clear`
    """
    from diptych.cli.exits import run_interruptible

    target = _target(at, kubeconfig, context, namespace, as_service_account)
    raise typer.Exit(run_interruptible(_queue(target, run, clears=clear, as_json=as_json)))


def cancel(
    run: RunId,
    at: At = DEFAULT_URL,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Cancel a run, with its calls and all runs below it. One that has ended stays as it is.

    Example: `diptych cancel run-1f3a --at team/helper`
    """
    from diptych.cli.exits import run_interruptible

    target = _target(at, kubeconfig, context, namespace, as_service_account)
    raise typer.Exit(run_interruptible(_cancel(target, run)))


def _target(at: str, *flags: Any) -> "Target":  # noqa: ANN401 - those of `ClusterFlags`
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags

    return Target(at, cluster=ClusterFlags(*flags))


async def _send(target: "Target", run_id: str, text: str, *, is_follow_up: bool) -> int:
    from diptych.cli.exit_codes import COMPLETED

    async with target.connect_remote() as agent:
        await agent.send(run_id, text, is_follow_up=is_follow_up)
    return COMPLETED


async def _queue(target: "Target", run_id: str, *, clears: bool, as_json: bool) -> int:
    from diptych.cli.exit_codes import COMPLETED
    from diptych.cli.output.screen import printable

    async with target.connect_remote() as agent:
        waiting = await (agent.clear_queue(run_id) if clears else agent.queue(run_id))
    if as_json:
        typer.echo(json.dumps(waiting))
        return COMPLETED
    for kind, messages in waiting.items():
        for each in messages:
            typer.echo(printable(f"{kind.replace('_', '-')}: {each['message']}"))
    what = "dropped" if clears else "waiting"
    typer.echo(f"{what}: {sum(map(len, waiting.values()))}", err=True)
    return COMPLETED


async def _cancel(target: "Target", run_id: str) -> int:
    from diptych.cli.exit_codes import COMPLETED

    async with target.connect_remote() as agent:
        status = await agent.send_cancellation(run_id)
    typer.echo(f"{run_id}: {status}", err=True)
    return COMPLETED
