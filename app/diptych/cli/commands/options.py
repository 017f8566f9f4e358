"""The options that several commands take, and the decorator that makes a function a command."""

import functools
import inspect
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from diptych.cli.cluster.kubectl import ClusterFlags

DEFAULT_URL = "http://127.0.0.1:8000"

RunId: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's id; responses have it as X-Run-ID.")
]
At: TypeAlias = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="URL|AGENT",
        help="Where it runs: the agent's URL, or an Agent of a cluster.",
    ),
]
RunningAgent: TypeAlias = Annotated[
    str, typer.Argument(metavar="URL|AGENT", help="The agent's URL, or an Agent of a cluster.")
]
OptionalAgent: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE|URL|AGENT",
        help="A file with Agents, an agent's URL, or an Agent of a cluster: [namespace/]name.",
    ),
]
ModelName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PROVIDER:NAME",
        help="Without a file: the model to ask, such as ollama:llama3.2.",
    ),
]
Files: TypeAlias = Annotated[list[Path], typer.Argument(metavar="FILE", help="Files with Agents.")]
Secrets: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="FILE",
        help="The secrets: NAME=value lines, or Secret manifests.",
    ),
]
Services: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--service",
        metavar="NAME=URL",
        help="The URL of a cluster's Service on this machine. May be given several times.",
    ),
]
Data: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR|none",
        help="The folder in which agents without a Redis keep their sessions; none is memory. "
        "Else a folder of the file's own in your state folder.",
    ),
]
AgentOfFile: TypeAlias = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="Which agent of the file; else the first."),
]
SessionId: TypeAlias = Annotated[
    str | None,
    typer.Option("--session", metavar="ID", help="The conversation to continue or to start."),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, for programs.")
]
NoInput: TypeAlias = Annotated[
    bool,
    typer.Option("--no-input", help="Ask nobody: exit with 4 if a call waits for a decision."),
]


def _which_cluster(kind: Any, metavar: str, text: str, *names: str) -> Any:  # noqa: ANN401 - a type
    option = typer.Option(*names, metavar=metavar, rich_help_panel="Which cluster", help=text)
    return Annotated[kind | None, option]


_CLUSTER_OPTIONS: Mapping[str, Any] = {
    "kubeconfig": _which_cluster(
        Path, "FILE", "As kubectl's; else KUBECONFIG, else ~/.kube/config.", "--kubeconfig"
    ),
    "context": _which_cluster(
        str, "NAME", "Which of its contexts; else the current one.", "--context"
    ),
    "namespace": _which_cluster(
        str, "NAME", "Which namespace; else the context's, else default.", "--namespace", "-n"
    ),
    "service_account": _which_cluster(
        str,
        "[NAMESPACE/]NAME",
        "Whose token to ask with; else the Agent's own ServiceAccount's.",
        "--as-service-account",
    ),
}
"""By the fields of `ClusterFlags`."""


def command(
    function: Callable[..., Coroutine[Any, Any, int]] | Callable[..., None],
) -> Callable[..., None]:
    """Make a command for typer of a function.

    Its parameter `cluster` becomes the options that choose a cluster. A coroutine function returns
    the exit code, and is cancelled by Ctrl-C.
    """
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    takes_cluster = parameters.pop("cluster", None) is not None

    @functools.wraps(function)
    def run(**given: Any) -> None:  # noqa: ANN401 - as typer has parsed it
        if takes_cluster:
            given["cluster"] = ClusterFlags(**{name: given.pop(name) for name in _CLUSTER_OPTIONS})
        if inspect.iscoroutinefunction(function):
            from diptych.cli.exits import run_interruptible

            raise typer.Exit(run_interruptible(function(**given)))
        function(**given)

    if takes_cluster:
        kind = inspect.Parameter.KEYWORD_ONLY
        for name, option in _CLUSTER_OPTIONS.items():
            parameters[name] = inspect.Parameter(name, kind, default=None, annotation=option)
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return run


def set_up_quiet_logging() -> None:
    """Log errors only, unless LOG_LEVEL asks for more: the output already shows the run."""
    from diptych.manifest.environment import process_settings
    from diptych.serve.logs import set_up_logging

    settings = process_settings(os.environ)
    level = settings.log_level if os.environ.get("LOG_LEVEL", "").strip() else "ERROR"
    set_up_logging(level, settings.log_format)
