"""Serves plain Python functions as an MCP server of this process: the library's tools.

Not here: how a call gets to them (`link`); it is the way that all calls take.
"""

import asyncio
import functools
import inspect
import logging
from typing import Any

import anyio.to_thread
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import InvalidSignature, ToolError

from diptych.config.settings import ToolConfig, ToolFunction
from diptych.errors import ConfigError


def function_server(server: ToolConfig) -> MCPServer[Any]:
    """Make an MCP server of a tool server's functions. Raises `ConfigError`."""
    # MCPServer sets up the root logger of whoever makes one, unless that has a handler already.
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)
    try:
        made: MCPServer[Any] = MCPServer(server.name)
    finally:
        root.removeHandler(quiet)
    problems = []
    names: set[str] = set()
    for function in server.functions:
        name = getattr(function, "__name__", type(function).__name__)
        if name in names:
            problems.append(f"tool server {server.name}: two functions are called {name}")
        names.add(name)
        try:
            made.add_tool(_telling(function), name=name)
        except (InvalidSignature, TypeError, ValueError, NameError) as error:
            problems.append(f"tool server {server.name}: {name} cannot be a tool: {error}")
    if problems:
        raise ConfigError(*problems)
    return made


def _telling(function: ToolFunction) -> ToolFunction:
    """Let the model read what the function raises: unlike a server's, it is the user's own code.

    A function that is not async runs on a thread, which is left behind when its call is cancelled.
    """
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - asks for its kind, not whether it is there
    )

    @functools.wraps(function)
    async def told(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as its author wrote it
        try:
            if is_async:
                return await function(*args, **kwargs)
            bound = functools.partial(function, *args, **kwargs)
            return await anyio.to_thread.run_sync(bound, abandon_on_cancel=True)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the call is being cancelled; else something that the function awaited was
            raise ToolError("the function was cancelled from within") from None
        except (ToolError, MCPError):
            raise
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    return told
