"""Hooks: user code that judges a run's calls, steps and answers.

Questions and replies are JSON, whether the hook is a function or a URL. A hook that crashes, times
out or replies with garbage raises `HookFailed`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from diptych.core.catalog import Catalog
from diptych.core.commands import Judge, JudgeAnswer, JudgeCall, JudgeStep
from diptych.core.errors import LoopError
from diptych.core.events import AnswerJudged, CallJudged, Event, Failed, StepJudged
from diptych.core.messages import JSON, Call, Delegation, JSONObject, Message, Result, ToolCall
from diptych.core.reading.arguments import check_arguments
from diptych.core.reading.strict_json import MAX_DEPTH, is_deep
from diptych.core.run_settings import HookPoint
from diptych.core.state import Run
from diptych.core.text import bounded, well_formed
from diptych.runs.run_log import RunLog

MAX_REASON = 4_096  # characters of a hook's reason
MAX_CONTEXT = 65_536  # characters, of all that providers add to one request
_STRICTLY = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_REPLY_FIELDS: Mapping[str, frozenset[str]] = {
    "beforeCall": frozenset({"deny", "arguments"}),
    "afterCall": frozenset({"result"}),
    "afterStep": frozenset({"end"}),
    "validateAnswer": frozenset({"problem"}),
}
_logger = logging.getLogger(__name__)


class HookFailed(Exception):
    """A hook gave no usable reply; the message names it and is logged in the run."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the hook {name} {why}")


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. `ask` takes a question and returns an object, or None to continue."""

    name: str
    point: HookPoint
    ask: Callable[[JSONObject], Awaitable[Any]]
    timeout: float


@dataclass(frozen=True, slots=True)
class ContextProvider:
    """Provides texts for a model request, which are never logged."""

    name: str
    ask: Callable[[JSONObject], Awaitable[Sequence[str]]]
    timeout: float


@dataclass(frozen=True, slots=True)
class ContextTransform:
    """Replaces the messages of one request to the model; nothing of it is recorded."""

    name: str
    ask: Callable[[tuple[Message, ...]], Awaitable[Sequence[Message]]]
    timeout: float


HookObserver = Callable[[str, str, str, float], None]
"""Called with the hook point, the hook's name, the outcome (`acted`, `passed`, `failed` or
`cancelled`) and the duration in seconds."""


def _ignore(point: str, name: str, outcome: str, seconds: float) -> None:
    """Observe nothing."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """An agent's hooks, in the order in which they are asked."""

    hooks: tuple[Hook, ...] = ()
    providers: tuple[ContextProvider, ...] = ()
    transforms: tuple[ContextTransform, ...] = ()
    observe: HookObserver = _ignore

    @property
    def changes_context(self) -> bool:
        """Whether requests to the model go through functions first."""
        return bool(self.providers or self.transforms)

    @property
    def points(self) -> tuple[HookPoint, ...]:
        """The points of a run at which there are hooks."""
        return tuple(dict.fromkeys(hook.point for hook in self.hooks))

    async def before_call(self, about: JSONObject, call: Call, catalog: Catalog) -> CallJudged:
        """Ask each hook about a call, as the previous hooks left it. A failing hook denies."""
        made, by = call, ""
        for hook in self._at("beforeCall"):
            try:
                async with self._reply(hook, {**about, "call": call_value(made)}) as reply:
                    if (reason := reply.get("deny")) is not None:
                        denied = _text(hook.name, "deny", reason)
                        denied = denied or f"denied by the hook {hook.name}"
                        return CallJudged(call.id, None, denied, hook.name)
                    if (arguments := reply.get("arguments")) is not None:
                        changed = _rewritten(hook.name, made, arguments, catalog)
                        made, by = changed, by if changed == made else hook.name
            except HookFailed as failed:
                run_id = about.get("run_id")
                _logger.warning("run %s: %s", run_id, failed, exc_info=failed.__cause__)
                return CallJudged(call.id, None, str(failed), hook.name)
        return CallJudged(call.id, made if made != call else None, None, by)

    async def after_call(self, about: JSONObject, call: Call, result: Result) -> tuple[Result, str]:
        """Return the result after the hooks, and the name of the last hook that replaced it."""
        by = ""
        for hook in self._at("afterCall"):
            question = {**about, "call": call_value(call), "result": result_value(result)}
            async with self._reply(hook, question) as reply:
                if (given := reply.get("result")) is not None:
                    result, by = _replaced(hook.name, result, given), hook.name
        return result, by

    async def after_step(self, about: JSONObject) -> str:
        """Return the name of the first hook that ends phase 1, or ""."""
        for hook in self._at("afterStep"):
            async with self._reply(hook, about) as reply:
                end = reply.get("end")
                if end is not None and not isinstance(end, bool):
                    raise HookFailed(hook.name, "returned an end that is neither true nor false")
                if end:
                    return hook.name
        return ""

    async def validate_answer(self, about: JSONObject) -> tuple[str, str]:
        """Return the first problem with an answer and the hook's name, or "", ""."""
        for hook in self._at("validateAnswer"):
            async with self._reply(hook, about) as reply:
                problem = reply.get("problem")
                if problem is not None and (text := _text(hook.name, "problem", problem)):
                    return text, hook.name
        return "", ""

    async def context(self, about: JSONObject) -> str:
        """Return the providers' texts for one request. Raises `HookFailed`."""
        texts: list[str] = []
        for provider in self.providers:
            with self._observed("context", provider.name) as outcome:
                given = await _asked(provider, about)
                if not all(isinstance(text, str) for text in given):
                    raise HookFailed(provider.name, "returned context that is not text")
                new = [well_formed(text) for text in given if text.strip()]
                texts += new
                if sum(map(len, texts)) > MAX_CONTEXT:
                    raise HookFailed(provider.name, f"returned more than {MAX_CONTEXT} characters")
                outcome.has_acted = bool(new)
        return "\n\n".join(texts)

    async def transformed(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return a request's messages as the transforms leave them. Raises `HookFailed`."""
        for transform in self.transforms:
            with self._observed("transformContext", transform.name) as outcome:
                given = await _asked(transform, messages)
                changed = tuple(given) if isinstance(given, Sequence) else ()
                if not (changed and all(isinstance(each, Message) for each in changed)):
                    raise HookFailed(transform.name, "gave something that is no list of messages")
                outcome.has_acted, messages = changed != messages, changed
        return messages

    def _at(self, point: HookPoint) -> tuple[Hook, ...]:
        return tuple(hook for hook in self.hooks if hook.point == point)

    @asynccontextmanager
    async def _reply(self, hook: Hook, question: JSONObject) -> AsyncIterator[Mapping[str, Any]]:
        """Ask a hook; a `HookFailed` in the block counts as the hook's failure."""
        with self._observed(hook.point, hook.name) as outcome:
            reply = await _reply(hook, question)
            outcome.has_acted = any(
                value is not None and value is not False for value in reply.values()
            )
            yield reply

    @contextmanager
    def _observed(self, point: str, name: str) -> Iterator["_Outcome"]:
        began, outcome, end = asyncio.get_running_loop().time(), _Outcome(), "cancelled"
        try:
            yield outcome
            end = "acted" if outcome.has_acted else "passed"
        except HookFailed:
            end = "failed"
            raise
        finally:
            self.observe(point, name, end, asyncio.get_running_loop().time() - began)


@dataclass(slots=True)
class _Outcome:
    """Whether a hook changed anything."""

    has_acted: bool = False


def call_value(call: Call) -> dict[str, JSON]:
    """Return a call as hooks see it."""
    if isinstance(call, Delegation):
        return {"id": call.id, "agent": call.agent, "task": call.task}
    return {"id": call.id, "tool": call.name, "arguments": call.arguments}


def result_value(result: Result) -> dict[str, JSON]:
    """Return a result as hooks see it, without empty fields."""
    value: dict[str, JSON] = {"text": result.text}
    if result.value is not None:
        value["value"] = result.value
    if result.error:
        value["error"] = result.error
    return value


def with_context(messages: tuple[Message, ...], context: str) -> tuple[Message, ...]:
    """Insert context before the user's last message if that is the last one, else at the end."""
    if not context:
        return messages
    last = messages[-1]
    if last.role == "user":
        return (*messages[:-1], replace(last, content=f"{context}\n\n{last.content}"))
    return (*messages, Message("user", context))


async def _asked(
    hook: Hook | ContextProvider | ContextTransform,
    question: Any,  # noqa: ANN401 - JSON, or messages
) -> Any:  # noqa: ANN401 - likewise
    """Ask a hook with its timeout; whatever goes wrong becomes `HookFailed`."""
    try:
        async with asyncio.timeout(hook.timeout):
            return await hook.ask(question)
    except HookFailed:
        raise
    except TimeoutError:
        raise HookFailed(hook.name, f"did not answer within {hook.timeout:g} s") from None
    except (KeyboardInterrupt, GeneratorExit):
        raise  # the process is ending, or the coroutine is being closed
    except BaseException as error:  # no other exception may end the process or the task
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
            raise
        raise HookFailed(hook.name, f"failed: {type(error).__name__}") from error


async def _reply(hook: Hook, question: JSONObject) -> Mapping[str, Any]:
    reply = await _asked(hook, {"at": hook.point, **question})
    if reply is None:
        return {}
    if not isinstance(reply, Mapping):
        raise HookFailed(hook.name, "returned something that is not a JSON object")
    if unknown := sorted(map(str, reply.keys() - _REPLY_FIELDS[hook.point])):
        raise HookFailed(
            hook.name, f"returned a field that {hook.point} does not have: {unknown[0][:40]}"
        )
    return reply


def _rewritten(name: str, call: Call, arguments: Any, catalog: Catalog) -> Call:  # noqa: ANN401
    """Return a call with new arguments; for a delegation, a new task."""
    if not isinstance(arguments, Mapping):
        raise HookFailed(name, "returned arguments that are not a JSON object")
    if isinstance(call, Delegation):
        task = arguments.get("task")
        if arguments.keys() != {"task"} or not (isinstance(task, str) and task.strip()):
            raise HookFailed(name, "returned a task that is not text")
        return replace(call, task=well_formed(task))
    changed: ToolCall = replace(call, arguments=_json(name, "arguments", arguments))
    tool = catalog.tool(call.name)
    problem = check_arguments(tool, changed.arguments, references_fit=False) if tool else None
    if problem:
        raise HookFailed(name, f"returned invalid arguments: {problem}")
    return changed


def _replaced(name: str, result: Result, given: Any) -> Result:  # noqa: ANN401
    if not isinstance(given, Mapping) or not isinstance(given.get("text"), str):
        raise HookFailed(name, "returned a result without a text")
    if not given.keys() <= {"text", "value"}:
        raise HookFailed(name, "returned a result with fields other than text and value")
    text = bounded(well_formed(given["text"]))
    return replace(result, text=text, value=_json(name, "a value", given.get("value")))


def _json(name: str, what: str, given: Any) -> Any:  # noqa: ANN401
    """Return a value as a record will hold it. Raises `HookFailed` if none can."""
    try:
        found = orjson.loads(orjson.dumps(given, default=_plain, option=_STRICTLY))
    except TypeError as error:  # of another type, larger than 64 bits, or nested too deeply
        raise HookFailed(name, f"returned {what} that JSON cannot represent") from error
    if is_deep(found):
        raise HookFailed(name, f"returned {what} nested more than {MAX_DEPTH} levels deep")
    return found


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _text(name: str, field: str, text: Any) -> str:  # noqa: ANN401
    if not isinstance(text, str):
        raise HookFailed(name, f"returned a {field} that is not text")
    return well_formed(text[:MAX_REASON]).strip()


class HookCaller:
    """Asks an agent's hooks about one run, one at a time.

    A failing hook denies the call (`beforeCall`) or ends the run (all others). While
    another process may own the run, only context providers are asked.
    """

    def __init__(self, hooks: Hooks, log: RunLog) -> None:
        self._hooks = hooks
        self._log = log
        self._run_id = log.run_id
        self._turn = asyncio.Lock()

    async def judge(self, command: Judge, run: Run) -> Event:
        """Ask the hooks about a call, a step or an answer."""
        async with self._turn:
            await self._log.wait_owned()
            try:
                return await self._judged(command, run)
            except HookFailed as failed:
                return self._failed(failed)

    async def after_call(self, call: Call, result: Result, run: Run) -> tuple[Result, str] | Failed:
        """Return the result after the hooks and who replaced it, or the run's failure."""
        async with self._turn:
            if "afterCall" in self._hooks.points:
                await self._log.wait_owned()
            try:
                return await self._hooks.after_call(self._about(run), call, result)
            except HookFailed as failed:
                return self._failed(failed)

    async def with_context(
        self, messages: tuple[Message, ...], run: Run
    ) -> tuple[Message, ...] | Failed:
        """Return a request's messages as providers and transforms leave them, or the failure."""
        try:
            messages = with_context(messages, await self._hooks.context(self._about(run)))
            return await self._hooks.transformed(messages)
        except HookFailed as failed:
            return self._failed(failed)

    async def _judged(self, command: Judge, run: Run) -> Event:
        about = self._about(run)
        if isinstance(command, JudgeCall):
            return await self._hooks.before_call(
                {**about, "step": command.step}, command.call, run.catalog
            )
        if isinstance(command, JudgeStep):
            results = {result.call_id: result_value(result) for result in run.results}
            step: list[JSON] = [
                {"call": call_value(call), "result": results[call.id]} for call in command.calls
            ]
            by = await self._hooks.after_step({**about, "step": command.step, "calls": step})
            return StepJudged(command.step, bool(by), by)
        if not isinstance(command, JudgeAnswer):
            raise LoopError(f"hooks cannot judge {command}")
        problem, by = await self._hooks.validate_answer({**about, "answer": command.text})
        return AnswerJudged(problem, by)

    def _about(self, run: Run) -> dict[str, JSON]:
        about: dict[str, JSON] = {"run_id": self._run_id, "question": run.asked.text}
        return {**about, "subject": run.subject} if run.subject else about

    def _failed(self, failed: HookFailed) -> Failed:
        _logger.warning("run %s: %s", self._run_id, failed, exc_info=failed.__cause__)
        return Failed("hook_failed", str(failed))
