"""`diptych run`: asks one question, shows the run, and exits as the run ended."""

import sys
from typing import Annotated

import typer

from diptych.cli.client.target import connect, is_file
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.options import (
    AgentOfFile,
    Json,
    ModelName,
    NoInput,
    OptionalAgent,
    Secrets,
    Services,
    SessionId,
    set_up_quiet_logging,
)
from diptych.core.errors import ConfigError


async def run(
    cluster: ClusterFlags,
    target: OptionalAgent = None,
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="What to ask; - reads it from stdin.")
    ] = None,
    model: ModelName = None,
    agent: AgentOfFile = None,
    session: SessionId = None,
    as_json: Json = False,
    no_input: NoInput = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Exit once the run has started, and print its id.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="The Idempotency-Key: a repeated key starts no second run."
        ),
    ] = None,
    secrets: Secrets = None,
    service: Services = None,
) -> int:
    """Ask an agent one question, and watch it work; or a model, if there is only a question.

    All Agents of the file are served on free ports of this machine meanwhile. The answer goes to
    stdout, the progress to stderr; Ctrl-C aborts the run.

    The exit code is 0 if it completed, 1 if it failed, 3 if it ran out of steps, 130 if it was
    aborted, 2 if the configuration is wrong, 4 if a call waits for a person and nobody can be
    asked: with --no-input or --json, or without a terminal.

    Examples: `diptych run agent.yaml "What is 2 + 2?"`, `diptych run team/helper "Well?"`,
    `diptych run --model ollama:llama3.2 "Well?"`
    """
    from diptych.cli.exits import EXIT_CODE_BY_STATUS, INPUT_REQUIRED
    from diptych.cli.follow import Renderer, print_availability, start_and_follow
    from diptych.cli.output.events import JsonLines
    from diptych.cli.output.screen import Mark, Screen
    from diptych.cli.output.timeline import Timeline
    from diptych.cli.typed_lines import InputRequired, TypedLines, can_ask

    if target is None:
        raise ConfigError('a question is missing: diptych run --model ollama:llama3.2 "Well?"')
    address = target if question is not None else None
    if address is None and is_file(target):
        raise ConfigError(f'a question is missing: diptych run {target} "What can you do?"')
    asked = target if question is None else question
    text = sys.stdin.read().strip() if asked == "-" else asked
    if not text.strip():
        raise ConfigError("the question is empty; give it in quotes, or - to read it from stdin")
    if detach and (address is None or is_file(address)):
        raise ConfigError(
            "--detach: a file's agents end with this command; serve it, and name the URL"
        )
    set_up_quiet_logging()
    async with connect(address, cluster, agent, secrets, service, model=model) as client:
        screen = Screen()
        if detach:
            started = await client.start(text, session, lambda _: None, key)
            typer.echo(started.run_id)
            return 0
        renderer: Renderer = JsonLines() if as_json else Timeline(screen, model=client.model)
        if not as_json:
            await print_availability(client, screen)
        typed = TypedLines(client, screen, asks=can_ask() and not (no_input or as_json))
        try:
            ended = await start_and_follow(client, text, session, renderer, typed, key)
        except InputRequired as waiting:
            way = waiting.way(str(target))
            if address is None or is_file(address):
                way = "its run ends with this command; serve the file"
                if can_ask():
                    way += f", or ask without {'--json' if as_json else '--no-input'}"
                else:
                    way = f"there is no terminal to ask at, and {way}"
            screen.print_line(Mark.NOTE.value, f"{waiting.call_id}: {waiting}: {way}")
            return INPUT_REQUIRED
    return EXIT_CODE_BY_STATUS[ended.status]
