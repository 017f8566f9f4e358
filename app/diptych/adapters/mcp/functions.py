"""Serves plain Python functions as an MCP server in this process: the tools of library users."""

import asyncio
import functools
import inspect
import logging
from typing import Any

import anyio.to_thread
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import InvalidSignature, ToolError

from diptych.adapters.mcp.tool_limits import NAME_RULE, is_usable_name
from diptych.config.settings import ToolFunction, ToolServerConfig
from diptych.errors import ConfigError


def function_server(server: ToolServerConfig) -> MCPServer[Any]:
    """Make an MCP server of a tool server's functions. Raises `ConfigError`."""
    # MCPServer configures the root logger of the program, unless that has a handler already.
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        mcp_server: MCPServer[Any] = MCPServer(server.name)
    finally:
        root.removeHandler(handler)
    problems = []
    names: set[str] = set()
    for function in server.functions:
        name = getattr(function, "__name__", type(function).__name__)
        if name in names:
            problems.append(f"tool server {server.name}: two functions are called {name}")
        names.add(name)
        if not is_usable_name(name):
            problems.append(f"tool server {server.name}: {name} is no name of a tool: {NAME_RULE}")
            continue
        try:
            mcp_server.add_tool(_with_error_text(function), name=name)
        except (InvalidSignature, TypeError, ValueError, NameError) as error:
            problems.append(f"tool server {server.name}: {name} cannot be a tool: {error}")
    if problems:
        raise ConfigError(*problems)
    return mcp_server


def _with_error_text(function: ToolFunction) -> ToolFunction:
    """Show the model the text of what the function raises, which `MCPServer` would hide.

    A function that is not async runs on a thread; cancelling its call abandons the thread.
    """
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - its kind is wanted, not whether it exists
    )

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the author's own types
        try:
            if is_async:
                return await function(*args, **kwargs)
            bound = functools.partial(function, *args, **kwargs)
            return await anyio.to_thread.run_sync(bound, abandon_on_cancel=True)
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise  # the call is cancelled; otherwise, something that the function awaited was
            raise ToolError("the function was cancelled from within") from None
        except (ToolError, MCPError):
            raise
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    return wrapper


def _is_being_cancelled() -> bool:
    """Say whether the running task is; a name for the task, which keeps the error, is a cycle."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
