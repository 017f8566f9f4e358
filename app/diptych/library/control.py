"""Control of running runs in the Python API: steer, decide, cancel, step."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Literal
from uuid import uuid4

from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import InvalidRequest
from diptych.core.events import MessageQueued
from diptych.core.messages import JSONObject, Message
from diptych.library.following import Decision, decision_request
from diptych.library.frozen import frozen
from diptych.library.results import OutputForm, output_schema
from diptych.runs.inputs import InputReply
from diptych.runs.request import RunRequest
from diptych.serve.hosted_agent import HostedAgent

MOST = 100
"""Steps and retries of a run in Python, whatever the agent's own: the caller owns the agent."""
_BEFORE_A_REPLY = frozenset({"offered", "user_message"})
_BEFORE_A_STEP = _BEFORE_A_REPLY | {"model_reply"}
"""Events that alone are no step: a reply that calls nothing leads to the answer."""
_LOOK_SECONDS = 0.01


class AgentControl(ABC):
    """Operations on an agent's runs, by their ids. All raise `RunNotFound`."""

    @abstractmethod
    async def start(self) -> HostedAgent:
        """Connect to tools and agents, once in each event loop."""

    async def begin(  # noqa: PLR0913 - the options of a run
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
        max_retries: int | None = None,
        paused: bool = False,
    ) -> str:
        """Start a run and return its id. One that is `paused` advances by `step`."""
        request = run_request(message, session_id, output, max_steps, max_retries)
        if not paused:
            return await self._begin(request)
        with (await self.start()).step_gate.holding() as held:
            run_id = await self._begin(request)
            held.add(run_id)
        return run_id

    async def step(self, run_id: str) -> list[Record]:
        """Let a paused run advance to its next request to the model; return what it recorded.

        A step is a reply with its calls, a reply that cannot be used, or the answer with the run's
        end. A reply that calls nothing is no step of its own. A run that is over returns nothing.
        """
        hosted = await self.start()
        before = len(await hosted.runs.records(run_id))
        while True:
            is_over = await _let_go(hosted, run_id, before)
            records = await _reply_after(hosted, run_id, before, is_over=is_over)
            if records and records[-1].event_type in TERMINAL:
                hosted.step_gate.free(run_id)
            is_step = any(record.event_type not in _BEFORE_A_STEP for record in records)
            if is_step or is_over or not hosted.step_gate.holds(run_id):
                return [frozen_record(record) for record in records]

    async def unpause(self, run_id: str) -> None:
        """Let a paused run continue to its end by itself."""
        (await self.start()).step_gate.free(run_id)

    async def steer(self, run_id: str, message: str, *, key: str | None = None) -> None:
        """Add a message to a run's conversation as soon as possible.

        Sent again with the same `key` it joins once. Raises `RunEnded`, `TooManyMessages`.
        """
        await self._send(run_id, MessageQueued(message, key or uuid4().hex))

    async def follow_up(self, run_id: str, message: str, *, key: str | None = None) -> None:
        """Begin the run's next turn with a message once this one has its answer; as `steer`."""
        await self._send(run_id, MessageQueued(message, key or uuid4().hex, is_follow_up=True))

    async def queued(self, run_id: str) -> Sequence[MessageQueued]:
        """Return the messages that wait in a run."""
        return await (await self.start()).runs.queued_messages(run_id) or ()

    async def clear_queue(self, run_id: str) -> Sequence[MessageQueued]:
        """Drop the messages that wait in a run, and return them. Raises `RunEnded`."""
        return await (await self.start()).runs.clear_messages(run_id)

    async def clear_steering(self, run_id: str) -> Sequence[MessageQueued]:
        """Drop the messages of `steer` that wait, and return them. Raises `RunEnded`."""
        return await (await self.start()).runs.clear_messages(run_id, only="steering")

    async def clear_follow_ups(self, run_id: str) -> Sequence[MessageQueued]:
        """Drop the messages of `follow_up` that wait, and return them. Raises `RunEnded`."""
        return await (await self.start()).runs.clear_messages(run_id, only="follow_ups")

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> None:
        """Abort a run; one that has ended stays as it is."""
        hosted = await self.start()
        await hosted.runs.cancel(run_id, reason)
        hosted.step_gate.free(run_id)

    async def approve(self, run_id: str, call_id: str) -> None:
        """Allow a call that waits. As all decisions, raises `AlreadyDecided`, `RunEnded`."""
        await self._decide(run_id, call_id, "approve")

    async def reject(self, run_id: str, call_id: str, reason: str = "") -> None:
        """Refuse a call that waits; the model reads the reason."""
        await self._decide(run_id, call_id, {"decision": "reject", "reason": reason})

    async def edit(self, run_id: str, call_id: str, arguments: JSONObject) -> None:
        """Make a call with other arguments. Raises `InvalidRequest` if they do not fit."""
        await self._decide(run_id, call_id, {"decision": "edit", "arguments": arguments})

    async def replace(self, run_id: str, call_id: str, call: JSONObject) -> None:
        """Make another call instead: `{"tool", "arguments"}` or `{"agent", "task"}`."""
        await self._decide(run_id, call_id, {"decision": "replace", "call": call})

    async def answer(
        self,
        run_id: str,
        call_id: str,
        action: Literal["accept", "decline", "cancel"],
        content: JSONObject | None = None,
    ) -> None:
        """Answer the question of a call (`InputRequestEvent`).

        `content` has the values of an accepted form. Raises `InputNotFound`, `AlreadyAnswered`,
        `RunEnded`, and `InvalidRequest` if the content does not match the form's schema.
        """
        hosted = await self.start()
        await hosted.runs.answer(run_id, call_id, InputReply(action, content))

    async def _begin(self, request: RunRequest) -> str:
        hosted = await self.start()
        return (await hosted.runs.start(hosted.in_current_trace(request))).run_id

    async def _send(self, run_id: str, message: MessageQueued) -> None:
        await (await self.start()).runs.send_message(run_id, message)

    async def _decide(self, run_id: str, call_id: str, decision: Decision) -> None:
        request = decision_request(decision)
        await (await self.start()).runs.answer(run_id, call_id, request)


def run_request(
    message: str,
    session_id: str | None,
    output: OutputForm | None,
    max_steps: int | None,
    max_retries: int | None,
) -> RunRequest:
    """Make the request for a run with one message. Raises `InvalidRequest`."""
    if not isinstance(message, str):
        raise InvalidRequest(f"message: must be a str (got {message!r:.60})", param="message")
    if not isinstance(session_id, str | None):
        raise InvalidRequest(
            f"session_id: must be a str (got {session_id!r:.60})", param="session_id"
        )
    schema = output_schema(output) if output is not None else None
    if max_retries is not None and not (type(max_retries) is int and 0 <= max_retries <= MOST):
        raise InvalidRequest(
            f"max_retries: a run has at least 0 and at most {MOST}", param="max_retries"
        )
    return RunRequest(
        (Message("user", message),),
        session_id=session_id,
        output_schema=schema,
        max_steps=max_steps,
        max_retries=max_retries,
        most_steps=MOST,
    )


def frozen_record(record: Record) -> Record:
    """Return a record that its reader cannot change."""
    return replace(record, content=frozen(record.content), metadata=frozen(record.metadata))


async def _reply_after(
    hosted: HostedAgent, run_id: str, after: int, *, is_over: bool
) -> list[Record]:
    """Return a run's records after a seq; wait for its last reply's, whose write is deferred."""
    while True:
        records = list(await hosted.runs.records(run_id, after))
        has_reply = any(record.event_type not in _BEFORE_A_REPLY for record in records)
        if has_reply or is_over or not hosted.step_gate.holds(run_id):
            return records
        await asyncio.sleep(_LOOK_SECONDS)


async def _let_go(hosted: HostedAgent, run_id: str, after: int) -> bool:
    """Let a paused run advance to its next request; returns whether it has ended instead."""
    steps = asyncio.ensure_future(hosted.step_gate.step(run_id))
    ends = asyncio.ensure_future(_end_of(hosted, run_id, after))
    await asyncio.wait((steps, ends), return_when=asyncio.FIRST_COMPLETED)
    is_over = ends.done()
    for waiting in (steps, ends):
        waiting.cancel()
    await asyncio.gather(steps, ends, return_exceptions=True)
    return is_over


async def _end_of(hosted: HostedAgent, run_id: str, after: int) -> None:
    """Wait until a run has ended, or goes on at another process; `after` is a seq on record."""
    async with aclosing(hosted.runs.subscribe(run_id, after)) as batches:
        async for _ in batches:
            pass
