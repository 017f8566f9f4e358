"""Options that several commands take, and what they mean.

Not here: what is done with them.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from diptych.errors import ConfigError

if TYPE_CHECKING:
    from diptych.config.loader import LaptopOptions

_OF_THE_PROCESS = ("PORT", "LOG_LEVEL", "LOG_FORMAT", "PUBLIC_URL", "SHUTDOWN_GRACE_SECONDS")

Secrets: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="FILE",
        help="Where secrets stand: NAME=value lines, or Secret manifests.",
    ),
]
Services: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--service",
        metavar="NAME=URL",
        help="Where a Service of the cluster is found here. May be given several times.",
    ),
]
AgentName: TypeAlias = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="Which agent of the file; else the first."),
]
SessionId: TypeAlias = Annotated[
    str | None,
    typer.Option("--session", metavar="ID", help="The conversation to continue or to start."),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object a line, for programs.")
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
AllNamespaces: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--all-namespaces", "-A", rich_help_panel=_PANEL, help="The Agents of all namespaces."
    ),
]


def laptop_options(secrets: Path | None, services: Sequence[str] | None) -> "LaptopOptions":
    """Say what stands in for a cluster. Raises `ConfigError` for a `--service` that is none."""
    from diptych.config.loader import LaptopOptions

    return LaptopOptions(dict(os.environ), secrets, _addresses(services or ()))


def process_environment() -> dict[str, str]:
    """Give the variables that are about the process, not about an agent."""
    return {name: os.environ[name] for name in _OF_THE_PROCESS if name in os.environ}


def _addresses(services: Sequence[str]) -> Mapping[str, str]:
    pairs = [service.partition("=") for service in services]
    wrong = [f"--service {name}: must be NAME=URL" for name, _, url in pairs if not (name and url)]
    if wrong:
        raise ConfigError(*wrong)
    return {name: url for name, _, url in pairs}
