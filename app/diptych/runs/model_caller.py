"""Asks a run's model: for a whole reply in phase 1, for a stream in phase 2.

Each piece passes `answer_filter`, which holds back possible actions, to `inbox.TextBatcher`.
Secrets of this process are redacted first, because a model's server knows its key and all tool
results.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import cast

from diptych.budgets.run_meter import BudgetRefused
from diptych.core.answer_gate import AnswerGate, is_attempt, is_call
from diptych.core.asking import event_of_failure, event_of_reply
from diptych.core.commands import AskModel
from diptych.core.errors import ModelError
from diptych.core.events import Event, Failed, Replied
from diptych.core.messages import JSONObject, NativeCall, Usage
from diptych.core.reading import strip_lead
from diptych.core.state import Run
from diptych.net.redaction import SECRETS
from diptych.ports import Delta, Notice, Reply
from diptych.runs.answer_filter import AnswerFilter
from diptych.runs.backends import Backends
from diptych.runs.hooks import HookCaller
from diptych.runs.inbox import TextBatcher
from diptych.runs.run_log import RunLog
from diptych.runs.timers import Deadline

PREAMBLE_CHARS = 160  # of text to hold back, as native calls may follow
MODEL_WAIT = "model_wait"
"""Type of the notice that a reply is slow or retried; for its fields, see
`ModelRequest.on_wait`."""
TURN_START = "turn_start"
"""Type of the notice before a request to the model, for agents in Python."""
MAX_KEPT_REASONING = 100_000  # characters of one reply


class ModelCaller:
    """Asks the model of one run; text for subscribers goes to `batcher`."""

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
        self._written = ""  # all text of this reply, if it reports no usage
        self._has_reasoned = False  # in an earlier reply
        self._is_reasoning = False  # in this reply

    async def ask(self, command: AskModel, run: Run) -> Event:
        """Send a request with the providers' context, once the step gate allows it.

        Returns the event of the reply or of the failure.
        """
        request = replace(
            command.request,
            seconds_left=self._deadline.seconds_left,
            on_wait=lambda about: self._log.notify(Notice(MODEL_WAIT, about)),
        )
        await self._backends.step_gate.pass_through(self._log.run_id)
        if self._backends.tells_turns and command.purpose != "summary":
            self._log.notify(Notice(TURN_START))
        if self._backends.hooks.changes_context and command.purpose != "summary":
            messages = await self._hooks.with_context(request.messages, run)
            if isinstance(messages, Failed):
                return messages
            request = replace(request, messages=messages)
            command = replace(command, weight=None)  # the context has changed it
        return await self._reply(replace(command, request=request), run)

    async def _reply(self, command: AskModel, run: Run) -> Event:
        """Meter a request, send it, and return the event of its outcome.

        A call that the model's server could not parse is charged, as the loop takes it for a reply.
        """
        meter, broken = self._backends.meter, None
        try:
            call = await meter.begin(command)
        except BudgetRefused as refused:
            return refused.end
        try:
            replied = call.with_usage(await self._send(command, run), self._written)
            return event_of_reply(command, replied)
        except ModelError as error:
            event = event_of_failure(command, redacted_failure(error))
            if isinstance(event, Replied):
                return call.with_usage(event, event.text)
            return event
        except BaseException as error:
            broken = error
            raise
        finally:
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
            async for piece in deltas:
                if trace and not texts:
                    trace.reply_began()
                delta = redaction.redacted(piece)
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
        """Return the reasoning to keep with native calls, if the endpoint may want it back."""
        is_kept = calls and self._model.wants_reasoning is not False
        return reasoning[:MAX_KEPT_REASONING] if is_kept else ""

    def _notify_reasoning(self, text: str) -> None:
        """Send reasoning to subscribers, with a blank line between replies."""
        if not text:
            return
        if self._has_reasoned and not self._is_reasoning:
            text = "\n\n" + text.lstrip("\n")
        self._is_reasoning = True
        self._log.notify(Notice("reasoning", {"content": text}))


def _gate(command: AskModel, run: Run) -> Callable[[], AnswerGate] | None:
    """Return a factory for a reply's gate; None if all text is held."""
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


def redacted_reply(reply: Reply) -> Reply:
    """Return a whole reply without secrets."""
    text, reasoning = SECRETS.redact(reply.text), SECRETS.redact(reply.reasoning)
    calls, finish_reason = _redacted_calls(reply.calls), SECRETS.redact(reply.finish_reason)
    return Reply(text, reply.usage, finish_reason, reasoning, calls)


class RedactedDeltas:
    """Redacts a streamed reply; text that may begin a secret is delayed."""

    def __init__(self) -> None:
        self._text, self._reasoning = SECRETS.stream(), SECRETS.stream()

    def redacted(self, delta: Delta) -> Delta:
        """Return the next piece, redacted."""
        said, thought = self._text.add(delta.text), self._reasoning.add(delta.reasoning)
        if delta.finish_reason is None:
            is_same = said is delta.text and thought is delta.reasoning
            return delta if is_same else replace(delta, text=said, reasoning=thought)
        text, reasoning = said + self._text.end(), thought + self._reasoning.end()
        reason = SECRETS.redact(delta.finish_reason)
        return Delta(text, reasoning, delta.usage, reason, _redacted_calls(delta.calls))


def redacted_failure(error: ModelError) -> ModelError:
    """Redact a failure."""
    error.message = SECRETS.redact(error.message)
    error.args = (error.message,)
    return error


def _redacted_calls(calls: tuple[NativeCall, ...]) -> tuple[NativeCall, ...]:
    return tuple(_redacted_call(call, position) for position, call in enumerate(calls))


def _redacted_call(call: NativeCall, position: int) -> NativeCall:
    """Redact a call; ids stay unique in their reply."""
    call_id = call.id if SECRETS.redact(call.id) == call.id else f"redacted_{position}"
    extra = cast("JSONObject | None", SECRETS.redact_value(call.extra))
    name, arguments = SECRETS.redact(call.name), SECRETS.redact(call.arguments)
    return NativeCall(call_id, name, arguments, extra)
