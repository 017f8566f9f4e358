"""The command line `diptych`, for people, and as the entry point of a container.

Errors are lines on stderr; `exit_codes` has the exit codes.
"""

import contextlib
import io
import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from diptych.cli.commands import (
    approvals,
    attach,
    chat,
    check,
    cluster,
    control,
    demo,
    events,
    pin,
    purge_sessions,
    resume,
    run,
    serve,
    status,
)
from diptych.cli.exit_codes import ABORTED, FAILED, USAGE
from diptych.cli.exits import interrupt_handler
from diptych.cli.streams import (
    drop_what_stderr_cannot_take,
    open_closed_streams,
    unwritable_output_is_an_end,
)
from diptych.core.errors import ConfigError, DiptychError, RequestError

__all__ = ["app", "main"]

_CLUSTER_PANEL = "In a cluster, by kubectl"
_PLUGIN_PREFIX = "kubectl-"  # kubectl runs `kubectl-NAME` as `kubectl NAME`

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
app.command("resume")(resume.resume)
app.command("steer")(control.steer)
app.command("follow-up")(control.follow_up)
app.command("queue")(control.queue)
app.command("cancel")(control.cancel)
app.command("approvals")(approvals.approvals)
app.command("approve")(approvals.approve)
app.command("reject")(approvals.reject)
app.command("check")(check.check)
app.command("pin")(pin.pin)
app.command("demo")(demo.demo)
app.command("status", rich_help_panel=_CLUSTER_PANEL)(status.status)
app.command("token", rich_help_panel=_CLUSTER_PANEL)(cluster.token)
app.command("purge-sessions", rich_help_panel=_CLUSTER_PANEL)(purge_sessions.purge_sessions)
app.command("demo-tools", hidden=True)(demo.demo_tools)


def main() -> None:
    """Run the command of `sys.argv`, and exit.

    The same program is `kubectl diptych`, as `kubectl-diptych` on PATH.
    """
    open_closed_streams()
    drop_what_stderr_cannot_take()
    _replace_unencodable_text()
    _add_own_scripts_to_path()
    with unwritable_output_is_an_end():
        _run_command()


def _run_command() -> None:
    try:
        with _interrupt_exits_130():
            app(prog_name=_program_name(sys.argv[0]))
    except ConfigError as error:
        _exit(USAGE, *error.problems)
    except RequestError as error:
        _exit(USAGE, error.message)
    except DiptychError as error:
        _exit(FAILED, str(error))


def _program_name(path: str) -> str:
    """Give the name under which a person has started this program."""
    name = Path(path).name
    return "kubectl diptych" if name.startswith(_PLUGIN_PREFIX) else "diptych"


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"diptych {version('diptych')}")
        raise typer.Exit


@app.callback()
def _diptych(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run AI agents, on a laptop and in a cluster.

    See it work: `diptych demo`
    """


@contextlib.contextmanager
def _interrupt_exits_130() -> Iterator[None]:
    """Exit with 130 on Ctrl-C where no command handles it; typer would exit with 1."""
    is_interrupted = False
    before = signal.getsignal(signal.SIGINT)  # `diptych.__main__` has one
    raise_interrupt = before if callable(before) else signal.default_int_handler

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        raise_interrupt(number, frame)

    with interrupt_handler(on_interrupt):
        try:
            yield
        except SystemExit as end:
            code = ABORTED if is_interrupted and end.code == FAILED else end.code
            raise SystemExit(code) from None


def _replace_unencodable_text() -> None:
    """Replace characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _add_own_scripts_to_path() -> None:
    """Append our own folder of scripts to PATH, so that a venv need not be activated.

    Tool servers are started by name (`command: [diptych, demo-tools]`), often from that folder.
    """
    folders = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    path += [folder for folder in dict.fromkeys(folders) if folder not in path]
    os.environ["PATH"] = os.pathsep.join(path)


def _exit(code: int, *problems: str) -> None:
    from diptych.net.redaction import SECRETS

    with contextlib.suppress(OSError):
        for problem in problems:
            sys.stderr.write(f"error: {SECRETS.redact(problem)}\n")
    raise SystemExit(code)
