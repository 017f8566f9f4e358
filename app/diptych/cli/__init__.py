"""The command line, `diptych`: what a person types on a laptop, and a container starts with.

Each command has a module; what it needs is imported when it runs, so that `--help` is quick.
Exit codes: 0 completed, 1 failed, 2 wrong configuration or usage, 3 max_steps, 130 aborted.

Not here: what any of it does to agents (`serving`, `runs`), how it looks (`show`, `screen`).
"""

import contextlib
import io
import os
import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from diptych.cli import chat, check, demo, events, run, serve
from diptych.errors import ConfigError, DiptychError, RequestError

__all__ = ["app", "main"]

FAILED, MISUSED = 1, 2

app = typer.Typer(
    name="diptych",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("events")(events.events)
app.command("check")(check.check)
app.command("demo")(demo.demo)
app.command("demo-tools", hidden=True)(demo.demo_tools)


def main() -> None:
    """Run the command that was typed, and exit. Errors are one line each on stderr."""
    _let_any_text_through()
    _let_commands_beside_us_be_found()
    try:
        app()
    except ConfigError as error:
        _exit(MISUSED, *error.problems)
    except RequestError as error:
        _exit(MISUSED, error.message)
    except DiptychError as error:
        _exit(FAILED, str(error))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"diptych {version('diptych')}")
        raise typer.Exit


@app.callback()
def _diptych(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Run AI agents, on a laptop as in a cluster.

    See it work: `diptych demo`
    """


def _let_any_text_through() -> None:
    """Show what the terminal cannot, instead of failing over a character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _let_commands_beside_us_be_found() -> None:
    """Put our own folder of commands last on PATH: a venv need not be activated to be used.

    Tool servers are started by name (`command: [diptych, demo-tools]`), often installed beside us.
    """
    folders = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path += [folder for folder in dict.fromkeys(folders) if folder not in path]
    os.environ["PATH"] = os.pathsep.join(path)


def _exit(code: int, *problems: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        for problem in problems:
            sys.stderr.write(f"error: {problem}\n")
    raise SystemExit(code)
