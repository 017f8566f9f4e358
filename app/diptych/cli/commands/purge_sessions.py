"""`diptych purge-sessions`: deletes what an Agent that is gone has left in a Redis."""

from typing import Annotated

import typer

from diptych.cli.exit_codes import USAGE


def purge_sessions(
    agent: Annotated[
        str, typer.Argument(metavar="NAMESPACE/NAME", help="The Agent whose sessions they were.")
    ],
    sessions: Annotated[
        str | None,
        typer.Option(
            "--sessions",
            metavar="KEY",
            help="Its status.sessions; without it, what is stored by the name alone.",
        ),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for its processes.")
    ] = 120.0,
) -> None:
    """Delete all sessions and runs of one Agent from the Redis at REDIS_URL.

    The operator runs this for an Agent that is deleted and has `sessions.onDelete: purge`. Of an
    Agent that still runs, it would delete what it remembers.
    """
    import asyncio
    import os

    from diptych.manifest.settings import sessions_prefix
    from diptych.stores.redis.purge import purge

    url = os.environ.get("REDIS_URL")
    namespace, _, name = agent.partition("/")
    if not url or not namespace or not name:
        typer.echo("error: give NAMESPACE/NAME, and the Redis in REDIS_URL", err=True)
        raise typer.Exit(USAGE)
    prefix = sessions_prefix(namespace, name, sessions)
    deleted = asyncio.run(purge(lambda: url, prefix, patience=patience))
    typer.echo(f"deleted {deleted} keys of {agent}")
