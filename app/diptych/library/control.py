"""Control of a run in flight, for the Python API: steer it, decide for it, take it step by step."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import InvalidRequest
from diptych.core.events import Decision, MessageQueued
from diptych.core.messages import JSONObject, Message
from diptych.core.reading.strict_json import decode_json
from diptych.core.text import well_formed
from diptych.library.run_result import OutputForm, output_schema
from diptych.runs.approvals import DecisionRequest
from diptych.runs.request import RunRequest
from diptych.serve.hosted_agent import HostedAgent

_BEFORE_A_STEP = frozenset({"offered", "user_message", "model_reply"})
"""Events that alone are none: a reply that calls nothing, perhaps not on record yet, is in them."""


class AgentControl(ABC):
    """What can be done with the runs of an agent, by their ids. All of it raises `RunNotFound`."""

    @abstractmethod
    async def start(self) -> HostedAgent:
        """Connect to tools and agents, once."""

    async def begin(
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
        paused: bool = False,
    ) -> str:
        """Start a run and return its id. One that is `paused` goes on by `step`."""
        hosted = await self.start()
        asked = run_request(message, session_id, output, max_steps)
        request = hosted.in_current_trace(asked)
        if not paused:
            return (await hosted.runs.start(request)).run_id
        with hosted.step_gate.holding() as held:
            run_id = (await hosted.runs.start(request)).run_id
            held.add(run_id)
        return run_id

    async def step(self, run_id: str) -> list[Record]:
        """Let a paused run go to its next request to the model, and return what it recorded.

        That is a step of phase 1 with its calls, or the answer and the run's end: then the last
        record is its terminal event. A reply that calls nothing is no step of its own, so that only
        of a run that is over it returns none.
        """
        hosted = await self.start()
        before = len(await hosted.runs.records(run_id))
        while True:
            is_over = await _let_go(hosted, run_id, before)
            records = list(await hosted.runs.records(run_id, before))
            if records and records[-1].event_type in TERMINAL:
                hosted.step_gate.free(run_id)
            is_step = any(record.event_type not in _BEFORE_A_STEP for record in records)
            if is_step or is_over or not hosted.step_gate.holds(run_id):
                return records

    async def unpause(self, run_id: str) -> None:
        """Let a paused run go on to its end by itself."""
        (await self.start()).step_gate.free(run_id)

    async def steer(self, run_id: str, message: str, *, key: str | None = None) -> None:
        """Add a message to a run's conversation as soon as possible.

        Sent again with the same `key` it joins once. Raises `RunEnded`, `TooManyMessages`.
        """
        await self._send(run_id, MessageQueued(message, key or uuid4().hex))

    async def follow_up(self, run_id: str, message: str, *, key: str | None = None) -> None:
        """Begin the run's next turn with a message when this one has its answer; as `steer`."""
        await self._send(run_id, MessageQueued(message, key or uuid4().hex, is_follow_up=True))

    async def queued(self, run_id: str) -> Sequence[MessageQueued]:
        """Return the messages that wait in a run."""
        return await (await self.start()).runs.queued_messages(run_id) or ()

    async def clear_queue(self, run_id: str) -> Sequence[MessageQueued]:
        """Drop the messages that wait in a run, and return them. Raises `RunEnded`."""
        return await (await self.start()).runs.clear_messages(run_id)

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> None:
        """Abort a run; one that has ended stays as it is."""
        hosted = await self.start()
        await hosted.runs.cancel(run_id, reason)
        hosted.step_gate.free(run_id)

    async def approve(self, run_id: str, call_id: str) -> None:
        """Let a call that waits be made. As all decisions, raises `AlreadyDecided`, `RunEnded`."""
        await self._decide(run_id, call_id, DecisionRequest("approve"))

    async def reject(self, run_id: str, call_id: str, reason: str = "") -> None:
        """Make no call; the model reads the reason."""
        await self._decide(run_id, call_id, DecisionRequest("reject", well_formed(reason)))

    async def edit(self, run_id: str, call_id: str, arguments: JSONObject) -> None:
        """Make the call with other arguments. Raises `InvalidRequest` if they do not fit."""
        await self._decide(run_id, call_id, _changed("edit", arguments=arguments))

    async def replace(self, run_id: str, call_id: str, call: JSONObject) -> None:
        """Make another call: `{"tool", "arguments"}` or `{"agent", "task"}`."""
        await self._decide(run_id, call_id, _changed("replace", call=call))

    async def _send(self, run_id: str, message: MessageQueued) -> None:
        await (await self.start()).runs.send_message(run_id, message)

    async def _decide(self, run_id: str, call_id: str, request: DecisionRequest) -> None:
        await (await self.start()).runs.decide(run_id, call_id, request)


def run_request(
    message: str, session_id: str | None, output: OutputForm | None, max_steps: int | None
) -> RunRequest:
    """Make the request for a run with one message."""
    schema = output_schema(output) if output is not None else None
    return RunRequest(
        (Message("user", message),),
        session_id=session_id,
        output_schema=schema,
        max_steps=max_steps,
    )


def _changed(
    decision: Decision, *, arguments: JSONObject | None = None, call: JSONObject | None = None
) -> DecisionRequest:
    """Ask for a change. Raises `InvalidRequest` for what JSON cannot hold, as no record can."""
    return DecisionRequest(decision, "", _plain("arguments", arguments), _plain("call", call))


def _plain(name: str, given: JSONObject | None) -> Any:  # noqa: ANN401 - JSON
    try:
        found = decode_json(json.dumps(given))
    except (TypeError, ValueError, RecursionError) as error:
        found = ValueError(str(error))
    if isinstance(found, ValueError):
        raise InvalidRequest(f"{name}: {found}", param=name, code="invalid_arguments")
    return found


async def _let_go(hosted: HostedAgent, run_id: str, after: int) -> bool:
    """Let a paused run go to its next request; returns whether it has ended instead."""
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
