"""`diptych run`: asks one question, shows the run, and exits as the run ended."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import (
    AgentOfFile,
    AsServiceAccount,
    Context,
    Json,
    Kubeconfig,
    Namespace,
    NoInput,
    Secrets,
    Services,
    SessionId,
)
from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.cli.approver import InputRequired
    from diptych.cli.client.target import Target


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL|AGENT",
            help="A file with Agents, an agent's URL, or an Agent of a cluster: [namespace/]name.",
        ),
    ],
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="What to ask; - reads it from stdin.")
    ],
    agent: AgentOfFile = None,
    session: SessionId = None,
    as_json: Json = False,
    no_input: NoInput = False,
    secrets: Secrets = None,
    service: Services = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    as_service_account: AsServiceAccount = None,
) -> None:
    """Ask an agent one question, and watch it work.

    All Agents of the file are served on free ports of this machine meanwhile. The answer goes to
    stdout, the progress to stderr; Ctrl-C aborts the run.

    The exit code is 0 if it completed, 1 if it failed, 3 if it ran out of steps, 130 if it was
    aborted, 2 if the configuration is wrong, 4 if a call waits for a decision and nobody can be
    asked: with --no-input or --json, or without a terminal.

    Examples: `diptych run agent.yaml "What is 2 + 2?"`, `diptych run team/helper "Well?"`
    """
    from diptych.cli.client.target import Target
    from diptych.cli.cluster.flags import ClusterFlags
    from diptych.cli.environment import set_up_quiet_logging
    from diptych.cli.exits import run_interruptible

    text = sys.stdin.read().strip() if question == "-" else question
    if not text.strip():
        raise ConfigError("the question is empty; give it in quotes, or - to read it from stdin")
    set_up_quiet_logging()
    cluster = ClusterFlags(kubeconfig, context, namespace, as_service_account)
    wanted = Target(target, agent, secrets, service, cluster)
    raise typer.Exit(run_interruptible(_ask(wanted, text, session, as_json, no_input)))


async def _ask(
    target: "Target", question: str, session: str | None, as_json: bool, no_input: bool
) -> int:
    from diptych.cli.approver import Approver, InputRequired, can_ask
    from diptych.cli.exit_codes import EXIT_CODE_BY_STATUS, INPUT_REQUIRED
    from diptych.cli.follow import print_availability, start_and_follow
    from diptych.cli.output.json_lines import JsonLines
    from diptych.cli.output.renderer import Renderer
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.timeline import Timeline

    async with target.connect() as agent:
        renderer: Renderer
        screen = Screen()
        approver = Approver(agent, screen, no_input=no_input or as_json or not can_ask())
        if as_json:
            renderer = JsonLines()
        else:
            await print_availability(agent, screen)
            renderer = Timeline(screen)
        try:
            ended = await start_and_follow(agent, question, session, renderer, approver)
        except InputRequired as waiting:
            screen.print_line(
                ("! ", "yellow"),
                f"{waiting.call_id} waits for a decision: {_way_to_decide(target, waiting)}",
            )
            return INPUT_REQUIRED
    return EXIT_CODE_BY_STATUS[ended.status]


def _way_to_decide(target: "Target", waiting: "InputRequired") -> str:
    if target.is_file:
        return "its run ends with this command; ask without --no-input, or serve the file first"
    what = f"{waiting.run_id} {waiting.call_id} --at {target.address}"
    return f"diptych approve {what}, or diptych reject {what}"
