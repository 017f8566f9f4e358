"""Hooks of the Python API: plain functions, sync or async, that a run asks (docs/hooks.md)."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Any, TypeAlias

from diptych.core.errors import ConfigError
from diptych.core.messages import JSON, JSONObject, Message
from diptych.core.run_settings import HookPoint
from diptych.runs.definition import HOOK_TIMEOUT
from diptych.runs.hooks import ContextProvider, ContextTransform, Hook, Hooks

HookFunction: TypeAlias = Callable[..., Any]
HookFunctions: TypeAlias = HookFunction | Sequence[HookFunction]
"""One function, or several that are asked in this order."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run of a hook's question; `subject` began it, "" if it is not known."""

    run_id: str
    question: str
    subject: str


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A call: of a `tool` with `arguments`, or of an `agent`, whose arguments are its `task`."""

    id: str
    arguments: Mapping[str, JSON]
    tool: str | None
    agent: str | None
    run: RunInfo


@dataclass(frozen=True, slots=True)
class ResultInfo:
    """A call's result: its text, its structured value if it has one, and the kind of its error."""

    text: str
    value: JSON = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step whose calls all have their results; `number` counts from 1."""

    number: int
    calls: tuple[tuple[CallInfo, ResultInfo], ...]
    run: RunInfo


@dataclass(frozen=True, slots=True)
class Deny:
    """Returned by `before_call` to deny a call; the model reads the reason."""

    reason: str


def function_hooks(
    functions: Mapping[HookPoint, HookFunctions | None],
    context: HookFunctions | None,
    transform_context: HookFunctions | None,
    seconds: float | None,
) -> Hooks:
    """Make hooks of functions. Raises `ConfigError` for anything else."""
    timeout = HOOK_TIMEOUT if seconds is None else seconds
    if not (isinstance(timeout, int | float) and timeout > 0):  # nor is NaN
        raise ConfigError("hook_seconds must be a number, more than 0")
    hooks = tuple(
        Hook(_name(each), point, partial(_ADAPTERS[point], each), timeout)
        for point, given in functions.items()
        for each in _listed(given)
    )
    providers = tuple(
        ContextProvider(_name(each), partial(_context, each), timeout) for each in _listed(context)
    )
    transforms = tuple(
        ContextTransform(_name(each), partial(_transform, each), timeout)
        for each in _listed(transform_context)
    )
    return Hooks(hooks, providers, transforms)


def _listed(given: HookFunctions | None) -> Sequence[HookFunction]:
    functions = () if given is None else (given,) if callable(given) else tuple(given)
    for each in functions:
        if not callable(each):
            raise ConfigError(f"a hook is a function, and {each!r:.100} is none")
    return functions


def _name(function: HookFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


async def call_function(function: HookFunction, *arguments: object) -> Any:  # noqa: ANN401 - its own type
    """Call a function of the user's: in this loop if it is async, else in a thread."""
    if inspect.iscoroutinefunction(function):
        # In a task of its own: one that cancels the task that it is in means itself, not the run.
        return await asyncio.ensure_future(function(*arguments))
    given = await _in_thread(function, *arguments)
    return await given if inspect.isawaitable(given) else given


async def _in_thread(function: HookFunction, *arguments: object) -> Any:  # noqa: ANN401 - what it gives
    """Call a function in a thread of its own.

    One that hangs would hold a thread of asyncio's few, which everything else needs, too; and a
    daemon does not hold up the end of the process.
    """
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def tell(given: object, error: BaseException | None) -> None:
        if reply.done():
            return  # it took too long
        if error is None:
            reply.set_result(given)
        elif isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
            reply.set_exception(RuntimeError(type(error).__name__))  # they would end the loop
        else:
            reply.set_exception(error)

    def work() -> None:
        given, error = None, None
        try:
            given = context.run(function, *arguments)
        except BaseException as raised:  # noqa: BLE001 - the one who waits is told
            error = raised
        with suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(tell, given, error)

    Thread(target=work, name=f"hook {_name(function)}", daemon=True).start()
    return await reply


async def _before_call(function: HookFunction, question: JSONObject) -> JSONObject | None:
    given = await call_function(function, _call_info(question["call"], question))
    if given is None:
        return None
    if isinstance(given, Deny):
        return {"deny": "" if given.reason is None else given.reason}
    return {"arguments": given}


async def _after_call(function: HookFunction, question: JSONObject) -> JSONObject | None:
    call, result = _call_info(question["call"], question), _result_info(question["result"])
    given = await call_function(function, call, result)
    if given is None:
        return None
    if isinstance(given, ResultInfo):
        return {"result": {"text": given.text, "value": given.value}}
    return {"result": {"text": given}}


async def _after_step(function: HookFunction, question: Any) -> JSONObject:  # noqa: ANN401 - JSON
    calls = tuple(
        (_call_info(each["call"], question), _result_info(each["result"]))
        for each in question["calls"]
    )
    step = StepInfo(question["step"], calls, _run(question))
    return {"end": await call_function(function, step)}


async def _validate_answer(function: HookFunction, question: JSONObject) -> JSONObject:
    return {"problem": await call_function(function, question["answer"])}


async def _context(function: HookFunction, question: JSONObject) -> Sequence[str]:
    given = await call_function(function, _run(question))
    if given is None:
        return ()
    if isinstance(given, Mapping):
        raise TypeError("a context is a text, or several")
    return (given,) if isinstance(given, str) else tuple(given)


async def _transform(function: HookFunction, messages: tuple[Message, ...]) -> Sequence[Message]:
    own = [replace(message, parts=deepcopy(message.parts)) for message in messages]
    given: Sequence[Message] | None = await call_function(function, own)
    return messages if given is None else given


_ADAPTERS: Mapping[HookPoint, Callable[[HookFunction, JSONObject], Awaitable[Any]]] = {
    "beforeCall": _before_call,
    "afterCall": _after_call,
    "afterStep": _after_step,
    "validateAnswer": _validate_answer,
}


def _run(question: Any) -> RunInfo:  # noqa: ANN401 - JSON
    return RunInfo(question["run_id"], question["question"], question.get("subject", ""))


def _call_info(call: Any, question: Any) -> CallInfo:  # noqa: ANN401 - JSON
    """Tell of a call with arguments of its own: what a function does to them changes no run."""
    arguments = deepcopy(call["arguments"]) if "tool" in call else {"task": call["task"]}
    return CallInfo(call["id"], arguments, call.get("tool"), call.get("agent"), _run(question))


def _result_info(result: Any) -> ResultInfo:  # noqa: ANN401 - JSON
    return ResultInfo(result["text"], deepcopy(result.get("value")), result.get("error"))
