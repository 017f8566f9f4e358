"""Commands that reach a run from another terminal: messages, cancellation, decisions on calls."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych.cli.client.target import connect_remote
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.options import DEFAULT_URL, At, Json, RunId, RunningAgent
from diptych.cli.exits import COMPLETED
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.core.events import InputAction

_Call = Annotated[str, typer.Argument(metavar="CALL", help="The id of the call, as call_1_1.")]
_Text = Annotated[str, typer.Argument(metavar="TEXT", help="The message.")]


async def steer(run: RunId, text: _Text, cluster: ClusterFlags, at: At = DEFAULT_URL) -> int:
    """Add a message to the conversation of a run, before the model is asked again.

    Calls that have not begun are skipped. A run that has ended takes none: exit code 1.

    Example: `diptych steer run-1f3a "only the cheapest one" --at team/helper`
    """
    async with connect_remote(at, cluster) as agent:
        await agent.send(run, text)
    return COMPLETED


async def follow_up(run: RunId, text: _Text, cluster: ClusterFlags, at: At = DEFAULT_URL) -> int:
    """Keep a message for when a run has its answer: it begins the run's next turn.

    A run that has ended takes none: exit code 1. `diptych run --session` goes on in its session.

    Example: `diptych follow-up run-1f3a "and in Rome?" --at team/helper`
    """
    async with connect_remote(at, cluster) as agent:
        await agent.send(run, text, is_follow_up=True)
    return COMPLETED


async def queue(
    run: RunId,
    cluster: ClusterFlags,
    clear: Annotated[bool, typer.Option("--clear", help="Drop the messages.")] = False,
    at: At = DEFAULT_URL,
    as_json: Json = False,
) -> int:
    """Show the messages that wait in a run, or drop them.

    Examples: `diptych queue run-1f3a`, `diptych queue run-1f3a --clear`
    """
    from diptych.cli.output.screen import printable

    async with connect_remote(at, cluster) as agent:
        waiting = await (agent.clear_queue(run) if clear else agent.queue(run))
    if as_json:
        typer.echo(json.dumps(waiting))
        return COMPLETED
    for kind, messages in waiting.items():
        for each in messages:
            typer.echo(printable(f"{kind.replace('_', '-')}: {each['message']}"))
    what = "dropped" if clear else "waiting"
    typer.echo(f"{what}: {sum(map(len, waiting.values()))}", err=True)
    return COMPLETED


async def cancel(run: RunId, cluster: ClusterFlags, at: At = DEFAULT_URL) -> int:
    """Cancel a run, with its calls and all runs below it. One that has ended stays as it is.

    Example: `diptych cancel run-1f3a --at team/helper`
    """
    async with connect_remote(at, cluster) as agent:
        status = await agent.cancel(run)
    typer.echo(f"{run}: {status}", err=True)
    return COMPLETED


async def approvals(
    cluster: ClusterFlags, address: RunningAgent = DEFAULT_URL, as_json: Json = False
) -> int:
    """List the calls of an agent that wait for a decision.

    Without the right to `approve` or `read`, you see only those of your own runs.

    Example: `diptych approvals team/helper`
    """
    from diptych.cli.output.wording import approval_text

    async with connect_remote(address, cluster) as agent:
        waiting = await agent.approvals()
    return _list(waiting, approval_text, as_json, "no call that you may see waits for a decision")


async def approve(
    run: RunId,
    call: _Call,
    cluster: ClusterFlags,
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
) -> int:
    """Let a call that waits be made, as it is or changed.

    Example: `diptych approve run-1f3a call_1_1 --at team/helper`
    """
    if edit is not None and replace is not None:
        raise ConfigError("give one of --edit and --replace")
    body: dict[str, Any] = {"decision": "approve"}
    if edit is not None:
        body = {"decision": "edit", "arguments": _object(edit, "--edit")}
    elif replace is not None:
        body = {"decision": "replace", "call": _object(replace, "--replace")}
    return await _decide(at, cluster, run, call, body)


async def reject(
    run: RunId,
    call: _Call,
    cluster: ClusterFlags,
    at: At = DEFAULT_URL,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the model reads it.")
    ] = "",
) -> int:
    """Refuse a call that waits: the model gets the reason as its result.

    Example: `diptych reject run-1f3a call_1_1 --reason "not on Fridays"`
    """
    return await _decide(at, cluster, run, call, {"decision": "reject", "reason": reason})


async def inputs(
    cluster: ClusterFlags, address: RunningAgent = DEFAULT_URL, as_json: Json = False
) -> int:
    """List the questions of an agent's tools that wait for an answer.

    Without the right to `manage` or `read`, you see only those of your own runs.

    Example: `diptych inputs team/helper`
    """
    from diptych.cli.output.wording import input_text

    async with connect_remote(address, cluster) as agent:
        waiting = await agent.inputs()
    return _list(waiting, input_text, as_json, "no question that you may see waits for an answer")


async def answer(
    run: RunId,
    call: _Call,
    cluster: ClusterFlags,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE", help="The fields of a form; others get defaults."),
    ] = None,
    at: At = DEFAULT_URL,
    decline: Annotated[bool, typer.Option("--decline", help="Refuse to answer.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Do not answer now.")] = False,
) -> int:
    """Answer the question of a tool: a form's fields, or nothing once its page was visited.

    A sign-in is answered by signing in; here it can only be declined or cancelled.

    Examples: `diptych answer run-1f3a call_1_1 size=small gift=yes`, `diptych answer run-1f3a
    call_1_1 --decline`
    """
    from diptych.cli.questions import read_form

    if sum((decline, cancel, bool(values))) > 1:
        raise ConfigError("give FIELD=VALUE, or one of --decline and --cancel")
    async with connect_remote(at, cluster) as agent:
        content = None
        if not (decline or cancel):
            found = [each for each in await agent.inputs_of(run) if each["call_id"] == call]
            asked = found[-1] if found else {}
            if values or asked.get("kind") == "form":
                try:
                    content = read_form(asked.get("schema"), values or ())
                except ValueError as error:
                    raise ConfigError(str(error)) from None
        action: InputAction = "decline" if decline else "cancel" if cancel else "accept"
        answered = await agent.answer(run, call, "input", {"action": action, "content": content})
    typer.echo(f"{answered['call_id']}: {answered.get('action', action)}", err=True)
    return COMPLETED


def _list(
    waiting: Sequence[Any],
    text: Callable[[Any], str],
    as_json: bool,
    nothing: str,
) -> int:
    """Print what waits, one a line; on stderr `nothing` if there is none."""
    from diptych.cli.output.screen import printable

    for each in waiting:
        typer.echo(json.dumps(each) if as_json else printable(text(each)))
    if not waiting and not as_json:
        typer.echo(nothing, err=True)
    return COMPLETED


async def _decide(
    at: str, cluster: ClusterFlags, run_id: str, call_id: str, body: dict[str, Any]
) -> int:
    async with connect_remote(at, cluster) as agent:
        decided = await agent.answer(run_id, call_id, "approval", body)
    typer.echo(f"{decided['call_id']}: {decided['decision']}", err=True)
    return COMPLETED


def _object(text: str, option: str) -> dict[str, Any]:
    from diptych.core.reading.strict_json import decode_json

    value = decode_json(text)
    if isinstance(value, ValueError):
        raise ConfigError(f"{option}: is not valid JSON: {value}")
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: must be a JSON object")
    return value
