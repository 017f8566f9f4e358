"""Asks the hooks of an agent about one run, one question after another."""

import asyncio
import logging

from diptych.core.commands import Judge, JudgeAnswer, JudgeCall, JudgeStep
from diptych.core.errors import LoopError
from diptych.core.events import AnswerJudged, Event, Failed, StepJudged
from diptych.core.messages import JSON, Call, Message, Result
from diptych.core.state import Run
from diptych.runs.hooks import HookFailed, Hooks, call_value, result_value, with_context
from diptych.runs.run_log import RunLog

_logger = logging.getLogger(__name__)


class HookCaller:
    """Asks for one run, one hook at a time; one that fails ends the run, and is named on record.

    What another process may have taken over is not asked about: that may have the reply on record.
    Context providers alone are asked whenever a request is due.
    """

    def __init__(self, hooks: Hooks, log: RunLog) -> None:
        self._hooks = hooks
        self._log = log
        self._run_id = log.run_id
        self._turn = asyncio.Lock()

    async def judge(self, command: Judge, run: Run) -> Event:
        """Ask about a call that is ready, a step or an answer."""
        async with self._turn:
            await self._log.wait_owned()
            try:
                return await self._judged(command, run)
            except HookFailed as failed:
                return self._failed(failed)

    async def after_call(self, call: Call, result: Result, run: Run) -> tuple[Result, str] | Failed:
        """Give a result as the hooks leave it, and who replaced it; or the end of the run."""
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
        """Give a request's messages with what the providers add; or the end of the run."""
        try:
            return with_context(messages, await self._hooks.context(self._about(run)))
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
            raise LoopError(f"{command} asks hooks nothing that they know")
        problem, by = await self._hooks.validate_answer({**about, "answer": command.text})
        return AnswerJudged(problem, by)

    def _about(self, run: Run) -> dict[str, JSON]:
        about: dict[str, JSON] = {"run_id": self._run_id, "question": run.asked.text}
        return {**about, "subject": run.subject} if run.subject else about

    def _failed(self, failed: HookFailed) -> Failed:
        _logger.warning("run %s: %s", self._run_id, failed, exc_info=failed.__cause__)
        return Failed("hook_failed", str(failed))
