"""`diptych run`: one question, its run, its answer, and an exit code."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli.commands.options import (
    AgentName,
    Context,
    Json,
    Kubeconfig,
    Namespace,
    Secrets,
    Services,
    SessionId,
)
from diptych.errors import ConfigError

if TYPE_CHECKING:
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
    agent: AgentName = None,
    session: SessionId = None,
    as_json: Json = False,
    no_input: Annotated[  # noqa: ARG001 - nothing asks yet
        bool, typer.Option("--no-input", help="Never ask a person anything.")
    ] = False,
    secrets: Secrets = None,
    service: Services = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Ask an agent one question, and watch it work.

    All Agents of the file are served on free ports of this machine meanwhile. The answer goes to
    stdout, what happens on the way to stderr; Ctrl-C aborts the run.

    The exit code is 0 if it completed, 1 if it failed, 3 if it ran out of steps, 130 if it was
    aborted, 2 if the configuration is wrong.

    Examples: `diptych run agent.yaml "What is 2 + 2?"`, `diptych run team/helper "Well?"`
    """
    from diptych.cli.client.target import Target, set_up_quiet_logging
    from diptych.cli.cluster.flags import ClusterPlace
    from diptych.cli.signals import run_to_exit_code

    text = sys.stdin.read().strip() if question == "-" else question
    if not text.strip():
        raise ConfigError("the question is empty; give it in quotes, or - to read it from stdin")
    set_up_quiet_logging()
    cluster = ClusterPlace(kubeconfig, context, namespace)
    place = Target(target, agent, secrets, service, cluster)
    raise typer.Exit(run_to_exit_code(_asked(place, text, session, as_json=as_json)))


async def _asked(target: "Target", question: str, session: str | None, *, as_json: bool) -> int:
    from diptych.cli.follow import EXIT_CODES, ask, introduce
    from diptych.cli.output.screen import Screen
    from diptych.cli.output.timeline import JsonLines, Timeline, View

    async with target.reached() as agent:
        view: View
        if as_json:
            view = JsonLines()
        else:
            screen = Screen()
            await introduce(agent, screen)
            view = Timeline(screen)
        ended = await ask(agent, question, session, view)
    return EXIT_CODES[ended.status]
