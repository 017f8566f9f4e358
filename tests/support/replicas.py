"""Processes that share a store, as far as one event loop can have several.

A replica's tasks are those that were begun in its context, and theirs. A frozen one is stopped at
its next call of the store (or of a double that asks `passed`); a killed one's tasks are cancelled,
and nothing of what they do in their last moments reaches the store.
"""

import asyncio
import contextlib
import contextvars
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from support.doubles import FunctionAgents, FunctionTools, ListeningModel
from support.shared_store import SharedStore

from diptych.core.codec import Record
from diptych.core.errors import DiptychError, StoreError
from diptych.core.messages import Message
from diptych.net.memory_budget import MemoryBudget
from diptych.policy.rules import Policy
from diptych.ports import FeedItem, Gap, Item, Notice
from diptych.ports.entries import IdempotencyKey, Lease, Opened, QueueHead, RunEntry
from diptych.ports.stores import Stores
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.hooks import Hooks
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService

PAUSE = 0.05  # seconds after which a patient call is sent again
PATIENCE = 1.8  # after which one that is not is given up

_here: contextvars.ContextVar["Replica | None"] = contextvars.ContextVar("replica", default=None)


class Killed(Exception):
    """The replica that was asked is dead."""


class Call(NamedTuple):
    """A call of the store, before (`is_done` false) or after it has taken effect."""

    replica: "Replica"
    name: str
    is_done: bool
    about: Sequence[str] = ()  # the event types of an append


LOST = "lost"  # the connection, with the call or with the reply
Trouble = Callable[[Call], float | str | None]
"""Says what befalls a call: seconds of delay, `LOST`, or nothing. May kill or freeze as well."""


class Replica:
    """How one process reaches the store: fulfils all its ports."""

    def __init__(self, store: SharedStore, name: str, trouble: Trouble = lambda _: None) -> None:
        self.store, self.name, self.trouble = store, name, trouble
        self.is_dead = False
        self.loses_messages: Callable[[], bool] = lambda: False
        self.runs: RunService
        self.model: Any = None
        self._going = asyncio.Event()
        self._going.set()
        self._context = contextvars.copy_context()
        self._context.run(_here.set, self)
        self._watches: dict[str, list[Callable[[FeedItem], None]]] = {}
        self._tokens: dict[str, str] = {}
        self._unheard: list[Callable[[], None]] = []
        loop = asyncio.get_running_loop()
        if loop.get_task_factory() is None:
            loop.set_task_factory(_numbering())
        store.on_publish.append(self._publish)
        store.on_gap.append(lambda: self._hear(self._miss_all))

    # Its life

    def begin(
        self,
        outside: Backends,
        definition: AgentDefinition | None = None,
        kind: type[RunService] = RunService,
        memory_budget: MemoryBudget | None = None,
    ) -> "Replica":
        """Start the runs of this process."""
        stores = Stores(self, self, self, self, self.store)
        self.runs = self._context.run(
            kind, definition or AgentDefinition("Be brief."), outside, stores, (), memory_budget
        )
        self._context.run(self.runs.start_background)
        return self

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have this process do something. Raises `Killed` if it dies meanwhile."""
        if self.is_dead:
            work.close()
            raise Killed(self.name)
        task = self.spawn(work)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise Killed(self.name)
        return task.result()

    def kill(self) -> None:
        """As SIGKILL does."""
        if self.is_dead:
            return
        self.is_dead = True
        self._going.clear()
        self._watches.clear()
        self.store.note(self.name, "trouble", what="killed", until=self._time())
        for task in sorted(asyncio.all_tasks(), key=hash):  # in the order of their coming
            if getattr(task, "replica", None) is self:
                task.cancel()

    def freeze(self, seconds: float) -> None:
        """As SIGSTOP does, and SIGCONT after so long."""
        if self._going.is_set():
            self._going.clear()
            asyncio.get_running_loop().call_later(seconds, self._thaw)
            self.store.note(self.name, "trouble", what="frozen", until=self._time() + seconds)

    def _thaw(self) -> None:
        if not self.is_dead:
            self._going.set()
            unheard, self._unheard = self._unheard, []
            for hear in unheard:
                hear()

    async def passed(self) -> None:
        """Go on when this process does."""
        while not self._going.is_set():
            if self.is_dead:
                raise asyncio.CancelledError
            await self._going.wait()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    # Its way to the store

    async def _call(
        self, name: str, step: Callable[[], Any], *, patient: bool = False, about: Any = ()
    ) -> Any:
        given_up = self._time() + PATIENCE
        while True:
            outcome = await self._try(name, step, about)
            if outcome is not LOST:
                break
            if not patient and self._time() >= given_up:
                raise StoreError("the store does not answer; try again later")
            await asyncio.sleep(PAUSE)
        if isinstance(outcome, DiptychError):
            raise outcome
        return outcome

    async def _try(self, name: str, step: Callable[[], Any], about: Any) -> Any:
        await self.passed()
        if await self._befalls(Call(self, name, is_done=False, about=about)):
            return LOST
        if self.store.is_away:
            return LOST
        try:
            outcome = step()
        except DiptychError as error:
            outcome = error
        if await self._befalls(Call(self, name, is_done=True, about=about)):
            return LOST
        return outcome

    async def _befalls(self, call: Call) -> bool:
        what = self.trouble(call)
        await asyncio.sleep(what if isinstance(what, float) else 0)
        await self.passed()
        return what is LOST

    # The ports

    @property
    def epoch(self) -> str:
        return self.store.epoch

    @property
    def lease_seconds(self) -> float | None:
        return self.store.lease_seconds

    async def open(
        self,
        first: Record,
        token: str,
        idempotency_key: IdempotencyKey | None = None,
        **conditions: Any,
    ) -> Opened:
        return await self._call(
            "open",
            lambda: self.store.open(self.name, first, token, idempotency_key, **conditions),
        )

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        types = tuple(record.event_type for record in records)
        step = lambda: self.store.append(self.name, records, lease, awaits_input)  # noqa: E731
        await self._call("append", step, patient=True, about=types)

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self._call("read", lambda: self.store.read(run_id, after, limit))

    async def entry(self, run_id: str) -> RunEntry:
        return await self._call("entry", lambda: self.store.entry(run_id))

    async def entries(self, session_id: str | None = None, **_: Any) -> Sequence[RunEntry]:
        runs = self.store.runs
        ids = [run_id for run_id in reversed(runs) if runs[run_id].session_id == session_id]
        return await self._call("entries", lambda: [self.store.entry(run_id) for run_id in ids])

    async def put_blob(self, key: str, blob: bytes) -> None:
        await self._call("keep", lambda: self.store.put_blob(key, blob))

    async def get_blob(self, key: str) -> bytes:
        return await self._call("kept", lambda: self.store.get_blob(key))

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        return await self._call("conversation", lambda: self.store.conversation(session_id))

    async def session_exists(self, session_id: str) -> bool:
        return await self._call("knows", lambda: session_id in self.store.sessions)

    async def sessions(self) -> Any:
        return await self._call("sessions", self.store.listed)

    async def delete(self, session_id: str) -> bool:
        return await self._call("delete", lambda: self.store.delete(session_id))

    async def claim(self, session_id: str, token: str) -> Lease | None:
        return await self._call("claim", lambda: self.store.claim(self.name, session_id, token))

    async def queue_head(self, session_id: str) -> QueueHead | None:
        return await self._call("queue_head", lambda: self.store.queue_head(session_id))

    async def next_run(self, lease: Lease) -> str | None:
        return await self._call("head", lambda: self.store.next_run(lease))

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        step = lambda: self.store.finish_run(run_id, said, lease)  # noqa: E731
        return await self._call("conclude", step, patient=True)

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return await self._call("renew", lambda: self.store.renew(leases))

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        await self._call("release", lambda: self.store.release(lease, hand_over=hand_over))

    async def unowned_sessions(self) -> Sequence[str]:
        return await self._call("unowned", self.store.unowned_sessions)

    async def overdue_runs(self) -> Any:
        return await self._call("overdue", self.store.overdue_runs)

    async def send_signal(self, run_id: str, demand: Any) -> None:
        await self._call("demand", lambda: self.store.send_signal(run_id, demand))

    def drop_signal(self, run_id: str, demand: Any) -> None:
        if not self.is_dead:
            self.store.drop_signal(run_id, demand)

    async def pending_signals(self, run_id: str) -> Any:
        return await self._call("demanded", lambda: self.store.pending_signals(run_id))

    async def may_be_truncated(self, run_id: str) -> bool:
        return await self._call("has_lost_tail", lambda: self.store.may_be_truncated(run_id))

    # The feed

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        if not (self.is_dead or self.store.is_away):
            self.store.publish_notice(run_id, None, [notice])

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        await self._call("watch", lambda: self._watches.setdefault(run_id, []).append(put))
        return lambda: self._watches.get(run_id, []).remove(put) if not self.is_dead else None

    def on_signal(self, asked: Callable[[str, str, Any], None]) -> None:
        def hear(*about: Any) -> None:
            if not self.loses_messages():
                self._hear(lambda: asked(*about))

        self.store.on_signal.append(hear)

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        def hear(session_id: str) -> None:
            if not self.loses_messages():
                self._hear(lambda: callback(session_id))

        self.store.on_released.append(hear)

    def _publish(self, run_id: str, token: str | None, items: Sequence[Item]) -> None:
        if run_id in self._watches:
            if self.loses_messages():
                asyncio.get_running_loop().call_later(0.5, self._hear, self._miss_all)
            else:
                self._hear(lambda: self._put(run_id, token, items))

    def _put(self, run_id: str, token: str | None, items: Sequence[FeedItem]) -> None:
        if token is not None and self._tokens.setdefault(run_id, token) != token:
            self._tokens[run_id] = token
            items = [Gap(), *items]
        for put in tuple(self._watches.get(run_id, ())):
            for item in items:
                put(item)

    def _miss_all(self) -> None:
        for run_id in tuple(self._watches):
            self._put(run_id, None, [Gap()])

    def _hear(self, hear: Callable[[], None]) -> None:
        """Have this process do what a message makes it do, once it goes on."""
        if self.is_dead:
            return
        if self._going.is_set():
            asyncio.get_running_loop().call_soon(hear, context=self._context.copy())
        else:
            self._unheard.append(lambda: self._hear(hear))


def ask(text: str, session_id: str | None = None, **rest: Any) -> RunRequest:
    return RunRequest((Message("user", text),), session_id=session_id, **rest)


class _Numbered(asyncio.Task[Any]):
    """A task that is hashed by its number: sets of tasks have the same order each time."""

    def __init__(self, number: int, replica: Replica | None, work: Any, **rest: Any) -> None:
        self._number = number
        self.replica = replica
        super().__init__(work, **rest)

    def __hash__(self) -> int:
        return self._number


def _numbering() -> Callable[..., asyncio.Task[Any]]:
    """Give a factory of a loop's tasks, which notes whose each one is."""
    numbers = itertools.count(1)

    def make(loop: Any, work: Any, *, context: Any = None) -> asyncio.Task[Any]:
        replica = context.get(_here) if context else _here.get()
        task = _Numbered(next(numbers), replica, work, loop=loop, context=context)
        if replica is not None and replica.is_dead:
            task.cancel()
        return task

    return make


def replica(store: SharedStore, name: str, *replies: Any, **rest: Any) -> Replica:
    """Begin a process over doubles; `rest`: as `doubles.house`, `trouble`, `memory_budget`."""
    made = Replica(store, name, rest.pop("trouble", lambda _: None))
    definition = rest.pop("definition", None)
    made.model = rest.pop("model", None) or ListeningModel(*replies or ("{}", "x"))
    tools, agents = rest.pop("tools", None) or {}, rest.pop("agents", None) or {}
    tools = tools if isinstance(tools, FunctionTools) else FunctionTools(tools)
    agents = agents if isinstance(agents, FunctionAgents) else FunctionAgents(agents)
    policy = rest.pop("policy", None) or Policy()
    hooks = rest.pop("hooks", None) or Hooks()
    definition = definition or AgentDefinition("Be brief.")
    settings = replace(definition.settings, hooks=hooks.points)
    definition = replace(definition, settings=settings)
    outside = Backends(made.model, tools, agents, policy=policy, hooks=hooks)
    return made.begin(outside, definition, memory_budget=rest.pop("memory_budget", None))


async def told(at: Replica, run_id: str, after: int = 0) -> list[Item]:
    """Follow a run at a process to its end, or as long as that follows it."""

    async def follow() -> None:
        async for batch in at.runs.subscribe(run_id, after):
            heard.extend(batch)

    heard: list[Item] = []
    with contextlib.suppress(Killed):
        await at.run(follow())
    return heard


def when(name: str, *types: str, act: Callable[[], None], is_done: bool = True) -> Trouble:
    """Have something happen at a call of the store: at an append, if it holds one of the types."""

    def befalls(call: Call) -> None:
        if (
            call.name == name
            and call.is_done == is_done
            and (not types or set(types) & set(call.about))
        ):
            act()

    return befalls
