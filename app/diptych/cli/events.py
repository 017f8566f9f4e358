"""`diptych events`: what a running agent has on record, and its runs as they happen."""

from typing import Annotated

import typer

from diptych.cli.options import Json, SessionId

_DEFAULT_URL = "http://127.0.0.1:8000"


def events(
    url: Annotated[str, typer.Argument(metavar="URL", help="The agent's address.")] = (
        _DEFAULT_URL
    ),
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
) -> None:
    """Show what an agent has on record: /memory/events as a table.

    Example: `diptych events http://127.0.0.1:8001 --session demo`
    """
    from diptych.cli.interrupts import run_to_exit_code

    work = _followed(url, run, as_json=as_json) if run else _shown(url, session, limit, as_json)
    raise typer.Exit(run_to_exit_code(work))


async def _shown(url: str, session: str | None, limit: int | None, as_json: bool) -> int:
    from diptych.cli.remote import agent_at
    from diptych.cli.rows import print_rows
    from diptych.cli.show import JsonLines

    async with agent_at(url) as agent:
        records = await agent.memory(session, limit)
    if as_json:
        view = JsonLines()
        for record in records:
            view.show(record)
    elif records:
        print_rows(records)
    else:
        of = f"session {session}" if session else f"the agent at {url}"
        typer.echo(f"nothing is on record of {of}", err=True)
    return 0


async def _followed(url: str, run_id: str, *, as_json: bool) -> int:
    from diptych.cli.asking import ticking
    from diptych.cli.remote import agent_at
    from diptych.cli.screen import Screen
    from diptych.cli.show import JsonLines, Timeline

    view = JsonLines() if as_json else Timeline(Screen(), question=True)
    async with agent_at(url) as agent, ticking(view):
        async for batch in agent.follow(run_id):
            for item in batch:
                view.show(item)
    return 0
