"""`diptych approvals`, `approve` and `reject`: calls that wait for somebody's decision."""

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
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags

_Call = Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, as call_1_1.")]


def approvals(
    address: Annotated[
        str,
        typer.Argument(metavar="URL|AGENT", help="The agent's URL, or an Agent of a cluster."),
    ] = DEFAULT_URL,
    as_json: Json = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """List the calls of an agent that wait for a decision.

    Who may neither `approve` nor `read` sees those of its own runs alone.

    Example: `diptych approvals team/helper`
    """
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.exits import run_interruptible

    target = _target(address, ClusterFlags(kubeconfig, context, namespace, as_service_account))
    raise typer.Exit(run_interruptible(_list(target, as_json=as_json)))


def approve(
    run: RunId,
    call: _Call,
    at: At = DEFAULT_URL,
    edit: Annotated[
        str | None,
        typer.Option("--edit", metavar="JSON", help="Make the call with these arguments."),
    ] = None,
    replace: Annotated[
        str | None,
        typer.Option(
            "--replace",
            metavar="JSON",
            help='Make another call in its place: {"tool": …, "arguments": {…}}.',
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Let a call that waits be made, as it is or changed.

    Example: `diptych approve run-1f3a call_1_1 --at team/helper`
    """
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.exits import run_interruptible

    if edit is not None and replace is not None:
        raise ConfigError("give one of --edit and --replace")
    body: dict[str, Any] = {"decision": "approve"}
    if edit is not None:
        body = {"decision": "edit", "arguments": _object(edit, "--edit")}
    elif replace is not None:
        body = {"decision": "replace", "call": _object(replace, "--replace")}
    target = _target(at, ClusterFlags(kubeconfig, context, namespace, as_service_account))
    raise typer.Exit(run_interruptible(_decide(target, run, call, body)))


def reject(
    run: RunId,
    call: _Call,
    at: At = DEFAULT_URL,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the model reads it.")
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Refuse a call that waits: the model gets the reason as its result.

    Example: `diptych reject run-1f3a call_1_1 --reason "not on Fridays"`
    """
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.exits import run_interruptible

    body = {"decision": "reject", "reason": reason}
    target = _target(at, ClusterFlags(kubeconfig, context, namespace, as_service_account))
    raise typer.Exit(run_interruptible(_decide(target, run, call, body)))


def _target(address: str, flags: "ClusterFlags") -> "Target":
    from diptych.cli.client.target import Target

    return Target(address, cluster=flags)


def _object(text: str, option: str) -> dict[str, Any]:
    from diptych.core.reading.strict_json import decode_json

    value = decode_json(text)
    if isinstance(value, ValueError):
        raise ConfigError(f"{option}: is not valid JSON: {value}")
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: must be a JSON object")
    return value


async def _list(target: "Target", *, as_json: bool) -> int:
    from diptych.cli.exit_codes import COMPLETED
    from diptych.cli.output.screen import printable
    from diptych.cli.output.wording import approval_text

    async with target.connect_remote() as agent:
        waiting = await agent.approvals()
    for approval in waiting:
        typer.echo(json.dumps(approval) if as_json else printable(approval_text(approval)))
    if not waiting and not as_json:
        typer.echo("no call that you may see waits for a decision", err=True)
    return COMPLETED


async def _decide(target: "Target", run_id: str, call_id: str, body: dict[str, Any]) -> int:
    from diptych.cli.exit_codes import COMPLETED

    async with target.connect_remote() as agent:
        decided = await agent.send_decision(run_id, call_id, body)
    typer.echo(f"{decided['call_id']}: {decided['decision']}", err=True)
    return COMPLETED
