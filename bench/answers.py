"""What `answerMode: direct` saves: the time that a model spends on a run, in both modes.

The model is in this process and takes its time as real ones do: so long for a request, so long for
each token. Three habits are measured: prose in phase 1, as small models give it whatever they are
told; the no-op that the rules ask for (in direct mode the answer); and a call before either.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping

from bench.report import table
from diptych import Agent
from diptych.loop.answer_prompt import DIRECT
from diptych.loop.model_request import ModelRequest
from diptych.ports import Delta, Reply

PREFILL = 0.1  # seconds that a model takes before the first token
TOKEN = 0.01  # seconds for each
ROUNDS = 5
_CALL = '{"tool": "_echo", "arguments": {"text": "hello"}}'
_ANSWER = [f"token{n} " for n in range(100)]
HABITS: Mapping[str, tuple[bool, bool]] = {  # says {} in phase 1; calls a tool first
    "prose in phase 1": (False, False),
    "a no-op in phase 1": (True, False),
    "a call, then prose": (False, True),
    "a call, then a no-op": (True, True),
}


class PacedModel:
    """Answers with 100 tokens; counts the seconds that it was busy."""

    def __init__(self, *, says_no_op: bool, calls_first: bool) -> None:
        self.busy = 0.0
        self._says_no_op, self._calls_first = says_no_op, calls_first

    async def complete(self, request: ModelRequest) -> Reply:
        return Reply("".join([delta.text async for delta in self.stream(request)]))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        begun = time.perf_counter()
        await asyncio.sleep(PREFILL)
        for token in self._tokens(request):
            await asyncio.sleep(TOKEN)
            yield Delta(token)
        self.busy += time.perf_counter() - begun
        yield Delta(finish_reason="stop")

    def _tokens(self, request: ModelRequest) -> list[str]:
        last = request.messages[-1].content
        if self._calls_first and request.index == 0:
            return [_CALL[at : at + 4] for at in range(0, len(_CALL), 4)]
        is_phase_two = "Now provide your final response" in last
        is_direct = last.endswith(DIRECT)
        return ["{}"] if self._says_no_op and not (is_phase_two or is_direct) else _ANSWER


async def measure() -> str:
    """Measure both modes with each habit; gives a table, as Markdown."""
    rows = []
    for habit, (says_no_op, calls_first) in HABITS.items():
        took = {
            mode: await _seconds(mode, PacedModel(says_no_op=says_no_op, calls_first=calls_first))
            for mode in ("separate", "direct")
        }
        (model, first), (direct, direct_first) = took["separate"], took["direct"]
        numbers = (model, direct, direct / model, first, direct_first)
        rows.append([habit, *(f"{number:.2f}" for number in numbers)])
    head = ["the model says", "separate, model s", "direct, model s", "ratio"]
    return table([*head, "separate, first text s", "direct, first text s"], rows)


async def _seconds(mode: str, model: PacedModel) -> tuple[float, float]:
    """Give the model's seconds for a run and the seconds to the first text, means of the rounds."""
    first = 0.0
    async with Agent(name="bench", model=model, tools=[_echo], answer_mode=mode) as agent:
        for _ in range(ROUNDS):
            begun, is_first = time.perf_counter(), True
            async for item in agent.stream("Say something."):
                if is_first and getattr(item, "event_type", "") == "text":
                    first += time.perf_counter() - begun
                    is_first = False
    return model.busy / ROUNDS, first / ROUNDS


async def _echo(text: str) -> str:
    """Say a text again."""
    return text
