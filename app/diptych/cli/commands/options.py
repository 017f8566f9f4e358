"""Options that several commands take."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

DEFAULT_URL = "http://127.0.0.1:8000"

RunId: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run.")]
At: TypeAlias = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="URL|AGENT",
        help="Where it runs: the agent's URL, or an Agent of a cluster.",
    ),
]
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
_PANEL = "Which cluster"
Kubeconfig: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="As kubectl's; else KUBECONFIG, else ~/.kube/config.",
    ),
]
Context: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        rich_help_panel=_PANEL,
        help="Which of its contexts; else the current one.",
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        rich_help_panel=_PANEL,
        help="Which namespace; else the context's, else default.",
    ),
]
AsServiceAccount: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--as-service-account",
        metavar="[NAMESPACE/]NAME",
        rich_help_panel=_PANEL,
        help="Whose token proves who asks; else the Agent's own ServiceAccount.",
    ),
]
AllNamespaces: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--all-namespaces", "-A", rich_help_panel=_PANEL, help="The Agents of all namespaces."
    ),
]

Open = Annotated[
    bool, typer.Option("--open", help="Let everybody who reaches the agents do everything.")
]
ApiPages = Annotated[
    bool, typer.Option("--docs", help="Show the API for people, at /docs and /redoc.")
]
