"""`diptych chat`: a conversation with an agent, in one session.

The loop of the agent's client stands still while a person types a question: `input` edits lines
better than we could. While a run goes on, the loop reads the terminal (`typed_lines`).
"""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from diptych.cli.client.target import connect, is_file
from diptych.cli.cluster.kubectl import ClusterFlags
from diptych.cli.commands.options import (
    AgentOfFile,
    AnyAgent,
    Data,
    NoInput,
    Secrets,
    Services,
    SessionId,
    set_up_quiet_logging,
)
from diptych.cli.exits import ABORTED, INPUT_REQUIRED, cancelled_by_signals

if TYPE_CHECKING:
    from diptych.cli.client.remote import RemoteAgent
    from diptych.cli.output.screen import Screen

_PROMPT = "❯ "
_HELP = (
    "a line typed meanwhile steers, /later … waits its turn; Ctrl-C aborts an answer, Ctrl-D ends"
)


def chat(
    target: AnyAgent,
    cluster: ClusterFlags,
    agent: AgentOfFile = None,
    session: SessionId = None,
    no_input: NoInput = False,
    secrets: Secrets = None,
    service: Services = None,
    data: Data = None,
) -> None:
    """Talk with an agent: it remembers what was said before.

    A line typed while the agent works steers it; `/later …` waits until it has answered. Ctrl-C
    aborts the answer, a second one leaves; Ctrl-D ends. A cluster is reached by a port-forward.

    Examples: `diptych chat agent.yaml`, `diptych chat team/helper`
    """
    from diptych.cli.data import data_folder
    from diptych.cli.output.screen import Mark, Screen
    from diptych.cli.typed_lines import InputRequired

    set_up_quiet_logging()
    screen = Screen()
    folder = data_folder(data, [Path(target)] if is_file(target) else ())
    connection = connect(target, cluster, agent, secrets, service, folder)
    try:
        with asyncio.Runner() as runner:
            client = runner.run(cancelled_by_signals(connection.__aenter__()))
            try:
                _converse(runner, client, screen, session, no_input=no_input)
            finally:
                runner.run(cancelled_by_signals(connection.__aexit__(None, None, None)))
    except InputRequired as waiting:
        screen.print_line(Mark.NOTE.value, f"{waiting.call_id} of {waiting.run_id}: {waiting}")
        raise typer.Exit(INPUT_REQUIRED) from None
    except asyncio.CancelledError:  # before the first question, or on the way out
        raise typer.Exit(ABORTED) from None


def _converse(
    runner: asyncio.Runner,
    agent: "RemoteAgent",
    screen: "Screen",
    session: str | None,
    *,
    no_input: bool,
) -> None:
    from diptych.cli.follow import print_availability, start_and_follow
    from diptych.cli.output.timeline import Timeline
    from diptych.cli.typed_lines import TypedLines, can_ask

    runner.run(cancelled_by_signals(print_availability(agent, screen)))
    screen.print_line((f"{agent.name} · {_HELP}", "dim"))
    asks = can_ask() and not no_input
    was_aborted = False
    while (question := _read_question(screen, was_aborted=was_aborted)) is not None:
        typed = TypedLines(agent, screen, asks=asks, steers=True)
        following = start_and_follow(agent, question, session, Timeline(screen), typed)
        try:
            ended = runner.run(cancelled_by_signals(following))
            session, was_aborted = ended.session_id, ended.status == "aborted"
        except asyncio.CancelledError:
            was_aborted = True
            screen.print_line(
                ("✗ aborted", "red"), ", before the agent had said that the run has begun"
            )
        screen.print_gap()


def _read_question(screen: "Screen", *, was_aborted: bool) -> str | None:
    """Read a line that is not empty from stdin; None at its end.

    Ctrl-C drops a line, and leaves if it comes right after another one, here or during the answer.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing and history
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            line = input(_PROMPT if is_terminal and screen.is_live else "")
        except EOFError:
            if is_terminal:
                screen.print_line()
            return None
        except KeyboardInterrupt:
            screen.print_line()
            if was_aborted:
                raise typer.Exit(ABORTED) from None
            was_aborted = True
            continue
        if line.strip():
            return line
