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
    Data,
    ModelName,
    NoInput,
    OptionalAgent,
    Secrets,
    Services,
    SessionId,
    set_up_quiet_logging,
)
from diptych.cli.exits import (
    ABORTED,
    COMPLETED,
    EXIT_CODE_BY_STATUS,
    INPUT_REQUIRED,
    cancelled_by_signals,
)
from diptych.core.errors import DiptychError

if TYPE_CHECKING:
    from diptych.cli.client.remote import RemoteAgent
    from diptych.cli.output.screen import Screen

_PROMPT = "❯ "
_HINT = "/help lists the commands"
_COMMANDS = {
    "/tools": "list the tools and agents that can be called",
    "/new": "start a new conversation",
    "/later": "followed by a line, while the agent works: asked after its answer",
    "/help": "show this",
    "/exit": "leave; so does Ctrl-D",
}
_HELP = (
    "A line typed while the agent works is sent to it at once. Ctrl-C aborts the answer, a second "
    "one leaves."
)


def chat(
    cluster: ClusterFlags,
    target: OptionalAgent = None,
    model: ModelName = None,
    agent: AgentOfFile = None,
    session: SessionId = None,
    no_input: NoInput = False,
    secrets: Secrets = None,
    service: Services = None,
    data: Data = None,
) -> None:
    """Talk with an agent, or without a file with a model: it remembers what was said before.

    Without --model, the first provider whose key is set is asked, such as openai for
    OPENAI_API_KEY. A line typed while the agent works steers it; `/help` lists the commands. Ctrl-C
    aborts the answer, a second one leaves; Ctrl-D ends. Without a terminal, the exit code is that
    of the last run that went wrong. A cluster is reached by a port-forward.

    Examples: `diptych chat agent.yaml`, `diptych chat --model ollama:llama3.2`,
    `diptych chat team/helper`
    """
    from diptych.cli.data import data_folder
    from diptych.cli.output.screen import Mark, Screen
    from diptych.cli.typed_lines import InputRequired

    set_up_quiet_logging()
    screen = Screen()
    folder = data_folder(data, [Path(target)] if target and is_file(target) else ())
    connection = connect(target, cluster, agent, secrets, service, folder, model)
    try:
        with asyncio.Runner() as runner:
            client = runner.run(cancelled_by_signals(connection.__aenter__()))
            try:
                code = _converse(runner, client, screen, session, no_input=no_input)
            finally:
                runner.run(cancelled_by_signals(connection.__aexit__(None, None, None)))
    except InputRequired as waiting:
        screen.print_line(Mark.NOTE.value, f"{waiting.call_id} of {waiting.run_id}: {waiting}")
        raise typer.Exit(INPUT_REQUIRED) from None
    except asyncio.CancelledError:  # before the first question, or on the way out
        raise typer.Exit(ABORTED) from None
    if not sys.stdin.isatty():
        raise typer.Exit(code)


def _converse(
    runner: asyncio.Runner,
    agent: "RemoteAgent",
    screen: "Screen",
    session: str | None,
    *,
    no_input: bool,
) -> int:
    """Ask what is typed, until the end; return the exit code of the last failed run."""
    from diptych.cli.follow import print_availability, start_and_follow
    from diptych.cli.output.timeline import Timeline
    from diptych.cli.typed_lines import TypedLines, can_ask

    runner.run(cancelled_by_signals(print_availability(agent, screen)))
    screen.print_line((f"{agent.name} · {_HINT}", "dim"))
    asks = can_ask() and not no_input
    was_aborted, code = False, COMPLETED
    while (question := _read_question(screen, was_aborted=was_aborted)) not in (None, "/exit"):
        question = question.removeprefix("/later ")  # nothing is to be waited for
        if question.startswith("/"):
            was_aborted = False
            session = None if question == "/new" else session
            runner.run(cancelled_by_signals(_show(question, agent, screen)))
            continue
        typed = TypedLines(agent, screen, asks=asks, steers=True)
        following = start_and_follow(
            agent, question, session, Timeline(screen, model=agent.model), typed
        )
        try:
            ended = runner.run(cancelled_by_signals(following))
            session, was_aborted = ended.session_id, ended.status == "aborted"
            if not was_aborted:  # by Ctrl-C, which leaves the chat as it was
                code = EXIT_CODE_BY_STATUS[ended.status] or code
        except asyncio.CancelledError:
            was_aborted = True
            screen.print_line(
                ("✗ aborted", "red"), ", before the agent had said that the run has begun"
            )
        screen.print_gap()
    return code


async def _show(command: str, agent: "RemoteAgent", screen: "Screen") -> None:
    """Show what a command is about; say so if there is none of this name."""
    from diptych.cli.output.screen import Mark
    from diptych.cli.output.wording import one_line

    match command:
        case "/help":
            for name, text in _COMMANDS.items():
                screen.print_line((f"  {name:<8}", "bold"), text)
            screen.print_line((_HELP, "dim"))
        case "/new":
            screen.print_line(("a new conversation begins", "dim"))
        case "/tools":
            try:
                tools = await agent.tools()
            except DiptychError as error:
                screen.print_line(Mark.NOTE.value, str(error))
                return
            for name, text in tools:
                screen.print_line((f"  {name}  ", "bold"), one_line(text, screen.width))
            if not tools:
                screen.print_line(("  it has no tools, and no agents to call", "dim"))
        case _:
            known = ", ".join(_COMMANDS)
            screen.print_line(Mark.NOTE.value, f"{command} is none of the commands: {known}")


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
            return line.strip() if line.strip().startswith("/") else line
