"""The command line `diptych`, for people, and as the entry point of a container.

Errors are lines on stderr; `exits` has the exit codes.
"""

import contextlib
import io
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych.cli.commands import (
    chat,
    check,
    cluster,
    control,
    demo,
    events,
    import_,
    init,
    login,
    mcp_server,
    model_proxy,
    pin,
    pool,
    run,
    serve,
    status,
)
from diptych.cli.commands.options import command
from diptych.cli.exits import FAILED, USAGE, open_closed_streams, unwritable_output_is_an_end
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
_COMMANDS: Sequence[Callable[..., Any]] = (
    init.init,
    chat.chat,
    run.run,
    serve.serve,
    events.events,
    events.attach,
    events.resume,
    control.steer,
    control.follow_up,
    control.queue,
    control.cancel,
    control.approvals,
    control.approve,
    control.reject,
    control.inputs,
    control.answer,
    login.login,
    check.check,
    pin.pin,
    mcp_server.mcp_server,
    import_.import_,
    demo.demo,
)
_CLUSTER_COMMANDS: Sequence[Callable[..., Any]] = (
    status.status,
    cluster.token,
    cluster.purge_sessions,
)
for _panel, _functions in ((None, _COMMANDS), (_CLUSTER_PANEL, _CLUSTER_COMMANDS)):
    for _function in _functions:
        _name = _function.__name__.rstrip("_").replace("_", "-")
        app.command(_name, rich_help_panel=_panel)(command(_function))
app.command("demo-tools", hidden=True)(demo.demo_tools)
app.command("model-proxy", hidden=True)(command(model_proxy.model_proxy))
app.command("pool", hidden=True)(command(pool.pool))


def main() -> None:
    """Run the command of `sys.argv`, and exit.

    The same program is `kubectl diptych`, as `kubectl-diptych` on PATH.
    """
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the terminal's encoding lacks a character
    _add_own_scripts_to_path()
    is_plugin = Path(sys.argv[0]).name.startswith(_PLUGIN_PREFIX)
    with unwritable_output_is_an_end():
        try:
            app(prog_name="kubectl diptych" if is_plugin else "diptych")
        except ConfigError as error:
            _exit(USAGE, *error.problems)
        except RequestError as error:
            _exit(USAGE, error.message)
        except DiptychError as error:
            _exit(FAILED, str(error))


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
