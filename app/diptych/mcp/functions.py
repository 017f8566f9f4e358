"""Serves plain Python functions as an in-process MCP server: the tools of library users."""

import asyncio
import functools
import inspect
import logging
from typing import Any, get_args

import anyio.to_thread
import mcp_types
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Audio, Image
from mcp.server.mcpserver.exceptions import InvalidSignature, ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from pydantic import PydanticUserError, TypeAdapter

from diptych.core.errors import ConfigError
from diptych.manifest.settings import ToolFunction, ToolServerConfig
from diptych.mcp.output import add_note
from diptych.mcp.tool_rules import NAME_RULE, is_usable_name


def function_server(server: ToolServerConfig) -> MCPServer[Any]:
    """Return an MCP server for a tool server's functions. Raises `ConfigError`."""
    problems, tools, names = list[str](), list[Tool](), set[str]()
    for function in server.functions:
        name = getattr(function, "__name__", type(function).__name__)
        if name in names:
            problems.append(
                f"two functions are called {name}; rename the one at {_place(function)}"
            )
            continue
        names.add(name)
        if not is_usable_name(name):
            why = "a lambda has no name: write a def" if name == "<lambda>" else NAME_RULE
            problems.append(f"{name} at {_place(function)} is no valid tool name: {why}")
            continue
        try:
            tools.append(_tool(function, name, _hints(server, name)))
        except (InvalidSignature, PydanticUserError, TypeError, ValueError, NameError) as error:
            reason = str(error).partition("\n")[0]
            problems.append(f"{name} at {_place(function)} cannot be a tool: {reason}")
    if problems:
        raise ConfigError(*problems)
    # MCPServer would configure the program's root logger, unless that has a handler already.
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        return MCPServer(server.name, tools=tools)
    finally:
        root.removeHandler(handler)


def _place(function: ToolFunction) -> str:
    """Return the file and line of a function, or its module if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return str(getattr(function, "__module__", None) or type(function).__module__)
    return f"{code.co_filename}:{code.co_firstlineno}"


def _hints(server: ToolServerConfig, name: str) -> mcp_types.ToolAnnotations | None:
    """Return the annotations of a tool, made from its function's marks."""
    marks = next((each for each in server.overrides if each.tool == name), None)
    if marks is None or (marks.read_only is None and marks.idempotent is None):
        return None
    return mcp_types.ToolAnnotations(
        read_only_hint=marks.read_only, idempotent_hint=marks.idempotent
    )


def _tool(function: ToolFunction, name: str, hints: mcp_types.ToolAnnotations | None) -> Tool:
    """Make a tool of a function. Raises `InvalidSignature` and others if it is unsuitable."""
    if inspect.isclass(function):
        raise InvalidSignature("it is a class; give a function, or a method of an instance")
    called = (function, getattr(function, "__call__", None))  # noqa: B004 - to inspect its kind
    if any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in called
    ):
        raise InvalidSignature("it is a generator, but a call has one result: return a list")
    signature = inspect.signature(function, eval_str=True)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidSignature(f"its parameter {parameter} cannot be passed by name")
        if parameter.annotation is parameter.empty and parameter.kind != parameter.VAR_KEYWORD:
            example = f"{parameter.name}: str"
            raise InvalidSignature(
                f"its parameter {parameter.name} has no type, and the model would guess; write "
                f"{example}, or Any"
            )
    try:
        tool = Tool.from_function(_with_error_text(function), name=name, annotations=hints)
    except PydanticUserError:
        for parameter in signature.parameters.values():
            _check_type(f"parameter {parameter.name}", parameter.annotation)
        raise
    if tool.output_schema is None and not _is_media(signature.return_annotation):
        _check_type("result", signature.return_annotation)
    about = tool.fn_metadata
    tool.fn_metadata = _Results(
        arg_model=about.arg_model,
        output_schema=about.output_schema,
        output_model=about.output_model,
        wrap_output=about.wrap_output,
    )
    return tool


def _check_type(what: str, annotation: Any) -> None:  # noqa: ANN401 - any type
    """Raise `InvalidSignature` for a type without a JSON schema."""
    if annotation is inspect.Parameter.empty:
        return
    try:
        TypeAdapter(annotation).json_schema()
    except PydanticUserError:
        shown = inspect.formatannotation(annotation)
        text = f"its {what} has the type {shown}, which has no JSON schema"
        raise InvalidSignature(text) from None


def _is_media(annotation: Any) -> bool:  # noqa: ANN401 - any type
    """Whether a return type contains images or audio, which the SDK converts itself."""
    return annotation in (Image, Audio) or any(map(_is_media, get_args(annotation)))


class _Results(FuncMetadata):
    """Converts return values to results, even if they do not match the return type."""

    def convert_result(
        self,
        result: Any,  # noqa: ANN401 - the author's own type
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        try:
            return super().convert_result(result)
        except ValueError:  # the function has run already, so return its value unchecked
            shown = FuncMetadata(arg_model=self.arg_model).convert_result(result)
            if isinstance(shown, mcp_types.CallToolResult):
                add_note(shown, "it does not match the function's return type")
            return shown


def _with_error_text(function: ToolFunction) -> ToolFunction:
    """Wrap a function so that the model sees the text of its errors, which `MCPServer` would hide.

    A function that is not async runs on a thread; cancelling its call abandons the thread.
    """
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - to inspect its kind
    )

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the author's own types
        try:
            if is_async:
                return await function(*args, **kwargs)
            bound = functools.partial(function, *args, **kwargs)
            result = await anyio.to_thread.run_sync(bound, abandon_on_cancel=True)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            # Otherwise something that the function awaited was cancelled, not the call.
            raise ToolError("the function was cancelled from within") from None
        except (ToolError, MCPError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # for example, sys.exit, or a panic in a Rust library
            raise ToolError(f"{type(error).__name__}: {error}") from error

    return wrapper


def _is_being_cancelled() -> bool:
    """Whether the current task is being cancelled.

    A function of its own, since a task in a local variable of the wrapper would form a cycle.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
