"""What a run held is freed at its end, whatever that is, not by the garbage collector.

Reference cycles are found later, many at once, by a search through what the process keeps.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.model_server import Step, model_server, silence, stalls, status

from diptych import Agent, RunError
from diptych.core.codec import Record
from diptych.manifest import API_VERSION
from diptych.runs import executor
from diptych.runs.model_caller import ModelCaller

CALL = '{"tool": "double", "arguments": {"number": 4}}'
DELEGATION = '{"agent": "second", "task": "Say something."}'
WORDS = " ".join(f"word-{n}" for n in range(30))
POLICY = [{"match": {"tool": "double"}, "when": "args.number > 10", "do": "deny"}]
LARGE = {"tokens": 10**9, "cost": "99"}
BUDGETS = {"budget": LARGE | {"perSession": LARGE, "perDay": LARGE}}
OURS = ("diptych.core", "diptych.policy", "diptych.runs", "diptych.models")


def double(number: int) -> int:
    """Double a number."""
    return number * 2


async def garbage_of(run: Callable[[], Awaitable[object]]) -> Counter[str]:
    """Say what a run leaves to the garbage collector, by its classes, once all is warm."""
    await run()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await run()
        gc.collect()
        found = Counter(type(each).__qualname__ for each in gc.garbage if _is_ours(each))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return found


def _is_ours(each: object) -> bool:
    """Say so of what drives a run; a response of httpx refers to itself, with our stream in it."""
    return type(each).__module__.startswith(OURS)


@pytest.mark.parametrize("steps", [[CALL, "{}", WORDS], ["<>", WORDS]], ids=["tool", "no tool"])
async def test_an_answered_run_leaves_nothing(steps: list[Step]) -> None:
    async with (
        model_server("{}") as model,
        Agent(
            "helper",
            model={"name": "m", "endpoint": model.url},
            tools=[double],
            policy=POLICY,
            after_step=lambda step: None,
        ) as agent,
    ):

        async def run() -> None:
            model.play(*steps)
            assert (await agent.run("What is it?")).text == WORDS

        assert not await garbage_of(run)


def broken() -> int:
    """Fail."""
    raise ValueError


waiting = asyncio.Event()


async def wait() -> None:
    """Wait for ever."""
    waiting.set()
    await asyncio.Event().wait()


FAILURES: dict[str, list[Step]] = {
    "a refusal": [status(400)],
    "a refusal of the key": [status(401)],
    "no JSON": [status(200, "<html>")],
    "an answer that is none": ["{}", CALL],
    "a stuck run": ['{"tool": "broken", "arguments": {}}'],
    "a server that says nothing": [silence],
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failed_run_leaves_nothing(name: str) -> None:
    timeouts = {"firstByte": "100ms", "total": "150ms"}
    async with (
        model_server("{}") as model,
        Agent(
            "helper",
            model={"name": "m", "endpoint": model.url, "timeouts": timeouts},
            tools=[double, broken],
            max_steps=9,
        ) as agent,
    ):

        async def run() -> None:
            model.play(*FAILURES[name])
            with pytest.raises(RunError):
                await agent.run("What is it?")

        assert not await garbage_of(run)


async def test_a_run_that_a_bug_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ModelCaller, "ask", ask)
    monkeypatch.setattr(executor._logger, "disabled", True)  # pytest keeps what is logged
    async with Agent("helper", mock_responses=["{}"]) as agent:

        async def run() -> None:
            with pytest.raises(RunError, match="internal_error"):
                await agent.run("What is it?")

        assert not await garbage_of(run)


@pytest.mark.parametrize(
    ("cancelled_at", "steps"),
    [
        ("tool_call", ['{"tool": "wait", "arguments": {}}']),
        ("text", ["{}", stalls("Half ")]),
        ("offered", [silence]),
    ],
    ids=["in a tool", "in the answer", "in phase 1"],
)
async def test_a_cancelled_run_leaves_nothing(cancelled_at: str, steps: list[Step]) -> None:
    async with (
        model_server("{}") as model,
        Agent("helper", model={"name": "m", "endpoint": model.url}, tools=[wait]) as agent,
    ):
        runs = (await agent.start()).runs

        async def run() -> None:
            model.play(*steps)
            waiting.clear()
            run_id = await agent.begin("What is it?")
            last: Any = None
            async for batch in runs.subscribe(run_id):
                for last in batch:
                    if isinstance(last, Record) and last.event_type == cancelled_at:
                        await (waiting if cancelled_at == "tool_call" else model.asked).wait()
                        await runs.cancel(run_id)
            assert last.event_type == "aborted"

        assert not await garbage_of(run)


async def test_a_run_with_budgets_that_delegates_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    async with model_server("{}") as model:
        prices = {"input": "0.25", "output": "2"}
        spec = {"model": {"name": "m", "endpoint": model.url, "prices": prices}}
        first = spec | BUDGETS | {"agents": [{"name": "second"}]}
        file.write_text(yaml.safe_dump_all(map(_manifest, ("first", "second"), (first, spec))))
        async with Agent.from_file(file, name="first") as agent:

            async def run() -> None:
                model.play(DELEGATION, "{}", WORDS, "{}", WORDS)
                assert (await agent.run("What is it?")).text == WORDS

            assert not await garbage_of(run)


def _manifest(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    about = {"apiVersion": API_VERSION, "kind": "Agent", "metadata": {"name": name}}
    return about | {"spec": spec}
