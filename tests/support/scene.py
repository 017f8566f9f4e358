"""Two pods on one store, who asks them, and the reckoning at the end."""

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from support.callers import Caller, Request, chat_request, client, run_request
from support.history import Event, problems
from support.orders import Charges, Pace, answer, order_agent, order_model
from support.pods import PodProcess, all_ready, now, pod_processes
from support.redis_server import RedisServer, redis_server
from support.run_logs import Frame, read_log, records, runs_since

LEASE = 10.0  # seconds, as pods have it
PULSE = 0.05
ALLOWED = LEASE + 5.0  # from a trouble's end to a run's end, besides what was left of it


@dataclass
class Scene:
    """All that a test of chaos needs; `history` has what everybody has seen."""

    redis: RedisServer
    pods: list[PodProcess]
    http: aiohttp.ClientSession
    tools: Charges | None = None
    history: list[Event] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    began: float = field(default_factory=time.time)  # of the wall clock
    lateness: float = 0.0  # seconds that the machine, busy with other work, was late up to now

    def caller(self, name: str, first: int = 0) -> Caller:
        """Have a client whose first pod is that of this number."""
        first %= len(self.pods)
        caller = Caller(name, self.http, self.pods[first:] + self.pods[:first], self.history)
        self.callers.append(caller)
        return caller

    def begin_anew(self) -> None:
        """Forget what was seen up to now."""
        self.history.clear()
        self.callers.clear()
        self.began = time.time()
        if self.tools:
            self.tools.begin_anew()
        self.lateness = 0.0

    def trouble(self, what: str, seconds: float = 0.0) -> None:
        """Note a trouble that is over in so many seconds, with what then takes its time."""
        event = {"t": now(), "actor": "test", "kind": "trouble", "what": what}
        self.history.append({**event, "until": now() + seconds})

    async def watch_the_machine(self) -> None:
        """Add up by how much short sleeps are late: by so much, pods may be late as well."""
        while True:
            begun = now()
            await asyncio.sleep(PULSE)
            self.lateness += max(0.0, now() - begun - 2 * PULSE)

    async def has(self, run: str) -> bool:
        """Whether a run is on record now."""
        pod = next(pod for pod in self.pods if pod.is_running)
        return await pod.status(f"/v1/runs/{run}") == 200

    async def logs(self) -> dict[str, list[Frame]]:
        """Read the records of all runs, which have ended; put them into the history.

        Those are among them that were begun, and that nobody was told of.
        """
        pod = next(pod for pod in self.pods if pod.is_running)
        known = [caller.run for caller in self.callers if caller.run]
        begun = await runs_since(self.http, pod, self.began)
        logs = {run: await read_log(self.http, pod, run) for run in dict.fromkeys(known + begun)}
        for log in logs.values():
            self.history.extend(records(log))
        return logs

    async def reckon(self) -> dict[str, list[Frame]]:
        """Read what is on record, and hold what everybody saw against what is promised."""
        logs = await self.logs()
        wrong = self.problems()
        assert not wrong, "\n".join(wrong)
        for caller in self.callers:
            told = {frame.id: frame.raw for frame in logs.get(caller.run, ())}
            assert caller.frames.items() <= told.items(), f"{caller.name} was told other bytes"
        return logs

    def problems(self) -> list[str]:
        """Say what is wrong with what everybody saw."""
        tools = self.tools.history() if self.tools else []
        asked = {event["text"] for event in self.history if event["kind"] == "accepted"}
        theirs = [event for event in tools if event["key"].partition(" ")[2] in asked]
        return problems([*self.history, *theirs], ALLOWED + self.lateness)


@asynccontextmanager
async def scene(
    *redis_options: str, tools: Charges | None = None, **pods_options: Any
) -> AsyncIterator[Scene]:
    """Start a store and pods (see `pod_processes`), and wait until they are ready."""
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(redis_server(*redis_options))
        pods = stack.enter_context(pod_processes(redis.url, **pods_options))
        http = await stack.enter_async_context(client())
        await all_ready(pods)
        found = Scene(redis, pods, http, tools)
        watching = asyncio.create_task(found.watch_the_machine())
        try:
            yield found
        finally:
            watching.cancel()


@asynccontextmanager
async def order_scene(
    tools: Charges, *redis_options: str, pace: Pace | None = None, **pods_options: Any
) -> AsyncIterator[Scene]:
    """Start pods that take orders (`support.orders`)."""
    async with order_model(pace) as model:
        options = {**order_agent(model, tools), **pods_options}
        async with scene(*redis_options, tools=tools, **options) as found:
            yield found


async def order(caller: Caller, request: Request, seconds: float) -> None:
    """Give an order, and hear the whole answer."""
    await caller.insist(request, seconds)
    await caller.hear_out()
    assert caller.end == "completed", (caller.run, caller.end)
    assert caller.text == answer(request.text), (caller.run, caller.text)


async def order_again(scene: Scene, request: Request, n: int, seconds: float) -> None:
    """Give an order again under its key, as clients do who hear nothing of it (G5).

    At once, at both pods, the first time without hearing the reply; and when it is done. Another
    order must not have the same key, before and after the end.
    """
    name = f"{request.key} again"
    await scene.caller(name, n).lose_reply(request)
    for m in (1, 2):
        caller = scene.caller(f"{name} {m}", n + m)
        await caller.insist(request, seconds)
        other = request_for(f"{request.text} otherwise {m}", request.key, n)
        await scene.caller(f"{name} otherwise {m}", n + m + 1).insist(other, seconds)
        await order(caller, request, seconds)


def request_for(text: str, key: str, n: int) -> Request:
    """Ask as a chat or for a run, in turn."""
    return chat_request(text, key) if n % 4 < 2 else run_request(text, key)


async def orders(
    scene: Scene, label: str, count: int, *, seconds: float, within: float
) -> list[Caller]:
    """Give orders at both pods, within a second, half of them as chats; wait for all answers.

    Every third one is given again, several times. `seconds` is what one may take without trouble,
    `within` what all may take.
    """
    draw = random.Random(label)
    begun: list[Caller] = []

    async def give(n: int, group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(draw.random())
        name = f"{label}-{n}"
        caller, request = scene.caller(name, n), request_for(name, name, n)
        begun.append(caller)
        if n % 3 == 0:
            group.create_task(order_again(scene, request, n, seconds))
        await order(caller, request, seconds)

    async with asyncio.timeout(within), asyncio.TaskGroup() as group:
        for n in range(count):
            group.create_task(give(n, group))
    return begun


def tell(text: str) -> None:
    """Show a measurement to whoever runs the tests with `-s`."""
    sys.stderr.write(f"{text}\n")
