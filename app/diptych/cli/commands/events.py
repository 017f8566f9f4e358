"""`diptych events`, `attach` and `resume`: what an agent did, and a run until it ends."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.client.target import connect_remote
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.options import (
    DEFAULT_URL,
    At,
    Json,
    RunId,
    RunningAgent,
    SessionId,
)
from diptych.cli.exits import COMPLETED, EXIT_CODE_BY_STATUS

if TYPE_CHECKING:
    from diptych.cli.client.remote import RemoteAgent


async def events(
    cluster: ClusterFlags,
    address: RunningAgent = DEFAULT_URL,
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
) -> int:
    """Show the recorded events of an agent: /memory/events as a table.

    Examples: `diptych events http://127.0.0.1:8001 --session demo`, `diptych events team/helper`
    """
    async with connect_remote(address, cluster) as agent:
        if run:
            return await _attach(agent, run, as_json=as_json)
        if tree:
            await _print_tree(agent, tree, as_json=as_json)
        else:
            await _print_events(agent, session, limit, as_json=as_json)
    return COMPLETED


async def attach(
    run: RunId,
    cluster: ClusterFlags,
    at: At = DEFAULT_URL,
    as_json: Json = False,
) -> int:
    """Follow a run: first what has happened, then what happens, until it ends.

    A connection that breaks is opened again, and the run is shown from where it was. Ctrl-C ends
    the command, not the run; the command that shows the run again is printed.

    The exit code is the run's: 0 if it completed, 1 if it failed or is not known (any more), 3 if
    it ran out of steps, 130 if it was aborted, or you pressed Ctrl-C.

    Example: `diptych attach run-1f3a --at team/helper`
    """
    async with connect_remote(at, cluster) as agent:
        return await _attach(agent, run, as_json=as_json)


async def resume(
    run: RunId,
    cluster: ClusterFlags,
    at: At = DEFAULT_URL,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", min=1, help="The most steps from here on; at most the Agent's maxSteps."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Go on where a run failed or was aborted, with no new message, and follow it to its end.

    A new run of the same session takes it up. Calls that were made are not made again. A run can
    be resumed as long as nothing else was asked in its session; resumed again, the same new run is
    shown.

    The exit code is the new run's, as of `diptych attach`; 2 if the run cannot be resumed, 1 if it
    is not known (any more).

    Example: `diptych resume run-1f3a --at team/helper`
    """
    async with connect_remote(at, cluster) as agent:
        resumed = await agent.resume(run, max_steps)
        return await _attach(agent, resumed.run_id, as_json=as_json)


async def _attach(agent: "RemoteAgent", run_id: str, *, as_json: bool) -> int:
    """Show a run until it ends, and return its exit code.

    On cancellation the command that follows the run again is printed.
    """
    from diptych.cli.follow import follow_run
    from diptych.cli.output.events import JsonLines
    from diptych.cli.output.screen import Mark, Screen
    from diptych.cli.output.timeline import Timeline

    screen = Screen()
    renderer = JsonLines() if as_json else Timeline(screen, question=True)
    try:
        return EXIT_CODE_BY_STATUS[await follow_run(agent, run_id, renderer)]
    except asyncio.CancelledError:
        screen.print_line(Mark.NOTE.value, agent.attach_hint(run_id))
        raise


async def _print_tree(agent: "RemoteAgent", run_id: str, *, as_json: bool) -> None:
    import json

    from diptych.cli.output.tree import print_tree

    tree = await agent.tree(run_id)
    if as_json:
        typer.echo(json.dumps(tree))
    else:
        print_tree(tree)


async def _print_events(
    agent: "RemoteAgent", session: str | None, limit: int | None, *, as_json: bool
) -> None:
    from diptych.cli.output.events import JsonLines, print_event_table

    records = await agent.recorded_events(session, limit)
    if as_json:
        renderer = JsonLines()
        for record in records:
            renderer.render(record)
    elif records:
        print_event_table(records)
    else:
        whose = f"session {session}" if session else f"the agent at {agent.name}"
        typer.echo(f"there are no events of {whose}", err=True)
