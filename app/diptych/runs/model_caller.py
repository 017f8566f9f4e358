"""Asks a run's model: for a whole reply in phase 1, for its pieces in phase 2.

With `answerMode: direct` it asks for pieces in both. A whole reply is streamed too, inside the
adapter. Each piece goes through `answer_filter`, which holds back what may open an action,
to `inbox.TextBatcher`. The first is due there at once, later ones every 25 ms: `TextDue` has
`Runner._write_text` take and record what has come.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from diptych.budgets.run_meter import BudgetRefused, ModelCall
from diptych.core.answer_gate import AnswerGate, is_attempt, is_call
from diptych.core.asking import event_of_failure, event_of_reply
from diptych.core.commands import AskModel
from diptych.core.errors import ModelError
from diptych.core.events import Event, Failed, Replied
from diptych.core.messages import NativeCall, Usage
from diptych.core.reading import strip_lead
from diptych.core.state import Run
from diptych.ports import Notice, may_want_reasoning
from diptych.runs.answer_filter import AnswerFilter
from diptych.runs.backends import Backends
from diptych.runs.deadline import Deadline
from diptych.runs.hook_caller import HookCaller
from diptych.runs.inbox import TextBatcher
from diptych.runs.redacted_replies import RedactedDeltas, redacted_failure, redacted_reply
from diptych.runs.run_log import RunLog

PREAMBLE_CHARS = 160  # that native calls may follow without any of it having been told
MODEL_WAIT = "model_wait"
"""The type of the notice that a reply is waited for; its fields are `ModelRequest.on_wait`'s."""
MAX_KEPT_REASONING = 100_000  # characters, of one reply


class ModelCaller:
    """Asks the model of one run. Text that may be told goes to `batcher`.

    The model is `adapters.openai_chat.chat_model.ChatModel`, or with `DEBUG_MOCK_RESPONSES`
    `adapters.scripted`.
    """

    def __init__(
        self,
        backends: Backends,
        hooks: HookCaller,
        log: RunLog,
        deadline: Deadline,
        batcher: TextBatcher,
    ) -> None:
        self._backends = backends
        self._model = backends.model
        self._hooks = hooks
        self._log = log
        self._deadline = deadline
        self._batcher = batcher
        self._written = ""  # what this reply says, told or not, where it does not say its usage
        self._has_reasoned = False  # in a reply before
        self._is_reasoning = False  # in this reply

    async def ask(self, command: AskModel, run: Run) -> Event:
        """Ask, with what context providers add, once the run may take its next step.

        Gives the reply's end: `Replied` or `Compacted`, or what follows if the model failed.
        """
        request = replace(
            command.request,
            seconds_left=self._deadline.seconds_left,
            on_wait=lambda about: self._log.notify(Notice(MODEL_WAIT, about)),
        )
        await self._backends.step_gate.pass_through(self._log.run_id)
        if self._backends.hooks.providers and command.purpose != "summary":
            messages = await self._hooks.with_context(request.messages, run)
            if isinstance(messages, Failed):
                return messages
            request = replace(request, messages=messages)
            command = replace(command, weight=None)  # there is more to weigh now
        return await self._reply(replace(command, request=request), run)

    async def _reply(self, command: AskModel, run: Run) -> Event:
        """Have a request counted, send it, and say what it ends as.

        A failure that is a reply for the loop (a call that the server could not read) counts as
        one, as the run itself counts it.
        """
        meter, broken = self._backends.meter, None
        try:
            call = await meter.begin(command)
        except BudgetRefused as refused:
            return refused.end
        try:
            replied = await self._send(command, run)
            if call:
                replied = call.with_usage(replied, self._written)
            elif replied.finish_reason == "length":  # we may have left it before its usage
                replied = ModelCall(command).with_usage(replied, self._written)
            return event_of_reply(command, replied)
        except ModelError as error:
            event = event_of_failure(command, redacted_failure(error))
            if call and isinstance(event, Replied):
                return call.with_usage(event, event.text)
            return event
        except BaseException as error:
            broken = error
            raise
        finally:
            if call:
                await meter.end(call, broken)
            broken = None  # its traceback leads here

    async def _send(self, command: AskModel, run: Run) -> Replied:
        self._has_reasoned, self._is_reasoning = self._has_reasoned or self._is_reasoning, False
        self._written = ""
        if command.is_streamed:
            return await self._stream(command, run)
        return await self._complete(command)

    async def _complete(self, command: AskModel) -> Replied:
        reply = redacted_reply(await self._model.complete(command.request))
        if trace := self._backends.trace:
            trace.reply_came(reply.text, reply.calls, reply.finish_reason)
        reasoning = strip_lead(reply.text)[1]
        if reasoning and not reply.text.lstrip().startswith(("<", "[")):
            self._backends.habits.opens_reasoning = True
        self._notify_reasoning("\n\n".join(filter(None, (reply.reasoning, reasoning))))
        kept = self._kept(reply.reasoning, reply.calls)
        self._note_written(reply.usage, reply.text, reply.reasoning)
        return Replied(reply.text, reply.usage, reply.finish_reason, reply.calls, kept)

    async def _stream(self, command: AskModel, run: Run) -> Replied:
        usage, finish_reason, calls = Usage(), "stop", tuple[NativeCall, ...]()
        texts: list[str] = []
        reasoning: list[str] = []
        answer_filter = AnswerFilter(
            self._batcher,
            command.recorded,
            _gate(command, run),
            self._notify_reasoning,
            opens_reasoning=self._backends.habits.opens_reasoning,
        )
        redaction = RedactedDeltas()
        trace = self._backends.trace
        async with aclosing(self._model.stream(command.request)) as deltas:
            async for heard in deltas:
                if trace and not texts:
                    trace.reply_began()
                delta = redaction.redacted(heard)
                answer_filter.feed(delta.text, delta.reasoning)
                texts.append(delta.text)
                reasoning.append(delta.reasoning)
                usage = delta.usage or usage
                finish_reason = delta.finish_reason or finish_reason
                calls = delta.calls or calls
                if answer_filter.is_cut:
                    finish_reason = "length"
                    break
        held = answer_filter.finish()
        self._backends.habits.opens_reasoning = answer_filter.began_in_reasoning
        kept = self._kept("".join(reasoning), calls)
        self._note_written(usage, *texts, *reasoning)
        if trace:
            trace.reply_came("".join(texts), calls, finish_reason)
        return Replied(held, usage, finish_reason, calls, kept)

    def _note_written(self, usage: Usage, *texts: str) -> None:
        if not usage.is_known:
            self._written = "".join(texts)

    def _kept(self, reasoning: str, calls: tuple[NativeCall, ...]) -> str:
        """Give what is kept of a reply's reasoning: nothing, unless the endpoint may want it."""
        is_kept = calls and may_want_reasoning(self._model)
        return reasoning[:MAX_KEPT_REASONING] if is_kept else ""

    def _notify_reasoning(self, text: str) -> None:
        """Tell reasoning; that of another reply of the run begins after a blank line."""
        if not text:
            return
        if self._has_reasoned and not self._is_reasoning:
            text = "\n\n" + text.lstrip("\n")
        self._is_reasoning = True
        self._log.notify(Notice("reasoning", {"content": text}))


def _gate(command: AskModel, run: Run) -> Callable[[], AnswerGate] | None:
    """Give what makes the gate of a reply; None if all of it is to be held."""
    request = command.request
    if request.output_schema is not None or "validateAnswer" in run.settings.hooks:
        return None
    reads_as_call = partial(is_call, catalog=run.catalog)
    is_direct = command.purpose == "either"
    attempts = partial(is_attempt, catalog=run.catalog)
    preamble = PREAMBLE_CHARS if is_direct and request.tools else 0
    return partial(
        AnswerGate,
        reads_as_call,
        is_attempt=attempts if is_direct else None,
        names=run.catalog.names,
        watches_lines=is_direct,
        min_chars=preamble,
    )
