"""The command line, `diptych`: what a person types on a laptop, and a container starts with.

Each command has a module; what it needs is imported when it runs, so that `--help` is quick.
Exit codes: 0 completed, 1 failed, 2 wrong configuration or usage, 3 max_steps, 130 aborted.

Not here: what any of it does to agents (`serving`, `runs`), how it looks (`show`, `screen`).
"""

import contextlib
import io
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from diptych.cli.commands import (
    attach,
    chat,
    check,
    demo,
    events,
    get,
    install,
    logs,
    run,
    serve,
    status,
)
from diptych.cli.signals import ABORTED
from diptych.errors import ConfigError, DiptychError, RequestError

__all__ = ["app", "main"]

FAILED, MISUSED = 1, 2
_CLUSTER = "In a cluster, by kubectl and helm"
_PLUGIN = "kubectl-"  # so kubectl finds programs that are its commands

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
app.command("attach")(attach.attach)
app.command("check")(check.check)
app.command("demo")(demo.demo)
app.command("install", rich_help_panel=_CLUSTER)(install.install)
app.command("status", rich_help_panel=_CLUSTER)(status.status)
app.command("get", rich_help_panel=_CLUSTER)(get.get)
app.command("logs", rich_help_panel=_CLUSTER)(logs.logs)
app.command("demo-tools", hidden=True)(demo.demo_tools)


def main() -> None:
    """Run the command that was typed, and exit. Errors are one line each on stderr.

    As `kubectl-diptych` on PATH it is `kubectl diptych`.
    """
    _let_any_text_through()
    _let_commands_beside_us_be_found()
    try:
        with _interrupts_told():
            app(prog_name=_called(sys.argv[0]))
    except ConfigError as error:
        _exit(MISUSED, *error.problems)
    except RequestError as error:
        _exit(MISUSED, error.message)
    except DiptychError as error:
        _exit(FAILED, str(error))


def _called(program: str) -> str:
    """Give the words by which a person has called us."""
    name = Path(program).name
    return "kubectl diptych" if name.startswith(_PLUGIN) else "diptych"


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
    """Run AI agents, on a laptop and in a cluster.

    See it work: `diptych demo`
    """


@contextlib.contextmanager
def _interrupts_told() -> Iterator[None]:
    """Give Ctrl-C its exit code also where no command hears it; to typer it is a failure."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there are signals heard
        return
    heard = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except SystemExit as end:
        raise SystemExit(ABORTED if heard and end.code == FAILED else end.code) from None
    finally:
        signal.signal(signal.SIGINT, before)


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
