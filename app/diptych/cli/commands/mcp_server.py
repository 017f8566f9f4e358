"""`diptych mcp-server`: serves a Python file's functions, or a stdio server's tools, over HTTP."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.core.errors import ConfigError

if TYPE_CHECKING:
    from diptych.manifest.settings import ToolServerConfig

_NAME = "tools"  # in logs and reasons
_CALL_SECONDS = 24 * 3600.0  # the client's own limit counts


async def mcp_server(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="The command of a stdio server."),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file whose functions are the tools."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package", metavar="NAME", help="A package that the file needs. May be repeated."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; :: is all, for containers.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")
    ] = 8000,
    path: Annotated[str, typer.Option(help="The path of the MCP endpoint.")] = "/mcp",
) -> int:
    """Serve tools over MCP's streamable HTTP: an MCPServer's pod runs this.

    With --python each function of the file is a tool, unless its name begins with _; parameters
    need types, and docstrings describe the tools to the model. With a COMMAND its tools are passed
    on; it is started again when it dies. The file or command runs with this process's rights and
    environment. Everybody who reaches the port may call the tools.

    /ready lists the tools with their digests, or says why there are none.

    Example: `diptych mcp-server --python tools.py`
    """
    if bool(command) == (python is not None):
        raise ConfigError("give --python FILE, or a command after --, and not both")
    if not path.startswith("/") or path in {"/health", "/ready"}:
        raise ConfigError(f"--path {path}: must begin with /, and be neither /health nor /ready")
    from diptych.manifest.environment import process_settings
    from diptych.serve.logs import set_up_logging
    from diptych.serve.process import ListenAddress, Sockets
    from diptych.serve.tool_server import serve_tools_until_signal

    settings = process_settings(os.environ)
    set_up_logging(settings.log_level, settings.log_format)

    def load() -> "ToolServerConfig":
        return of_file(python, package or ()) if python else _of_command(command or ())

    sockets = Sockets(ListenAddress(host, port), 1)
    await serve_tools_until_signal(load, sockets, path, grace=settings.shutdown_grace)
    return 0


def _of_command(command: Sequence[str]) -> "ToolServerConfig":
    from diptych.manifest.settings import ToolServerConfig

    return ToolServerConfig(
        _NAME, command=tuple(command), env=dict(os.environ), timeout=_CALL_SECONDS
    )


def of_file(file: Path, packages: Sequence[str]) -> "ToolServerConfig":
    """Load a file's functions, with their marks. Raises `ConfigError`."""
    from dataclasses import replace

    from diptych.library.tools import sort_tools
    from diptych.mcp.python_file import load_functions

    sources = sort_tools(_NAME, load_functions(file, packages))
    [config] = sources.function_server()
    marked = any(each.sequential or each.terminal for each in config.overrides)
    if sources.rules or marked:
        raise ConfigError(
            f"{file.name}: MCP cannot carry the marks ask, sequential and terminal; set them in "
            "the Agent's policy and the tools' overrides"
        )
    return replace(config, name=_NAME, timeout=_CALL_SECONDS)
