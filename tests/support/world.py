"""One seed of the simulation of owners: processes, clients and troubles on one store.

Everything is drawn from the seed, and everything that happens is noted for `support.history`.
"""

import asyncio
import json
import random
from collections import Counter

from support.doubles import FunctionTools, tool
from support.history import TERMINAL, problems
from support.replicas import LOST, Killed, Replica, ask
from support.shared_store import LEASE_SECONDS, SharedStore
from support.virtual_time import run_virtually

from diptych.adapters.nobody import NoAgents
from diptych.errors import ModelError, Overloaded, RunOver, StoreError, ToolError
from diptych.events import Steered, Terms
from diptych.loop import replay
from diptych.offering import Charter
from diptych.outgoing import Outside
from diptych.ports import Delta, Notice, Once, Reply
from diptych.record import Record, from_row
from diptych.run_state import Phase
from diptych.runs import Runs

ALLOWANCE = LEASE_SECONDS + 5
TROUBLED = 40.0  # seconds, after which nothing breaks any more
PATIENCE = 1_500.0  # seconds after which what is not done never will be


def now():
    return asyncio.get_running_loop().time()


class Model:
    """Says anything, most of it again if it is asked again; knows a session by its questions."""

    def __init__(self, world, replica):
        self.world, self.replica = world, replica

    async def complete(self, messages, index):
        chance = await self._think(messages, index)
        if chance.random() < 0.45:
            return Reply(chance.choice(["{}", "<>", "I know it.", '{"tool": ']))
        key = f"{_question(messages)}/{index}"
        calls = [
            {"tool": chance.choice(["charge", "look"]), "arguments": {"key": f"{key}/{n}"}}
            for n in range(chance.randrange(1, 4))
        ]
        return Reply(json.dumps(calls))

    async def stream(self, messages, index):
        chance = await self._think(messages, index)
        heard = {m.content.split()[1] for m in messages if m.content.startswith("Q ")}
        words = [*sorted(heard), *chance.choices("abcd", k=chance.randrange(6))]
        for word in words:
            yield Delta(f"{word} ")
            await asyncio.sleep(chance.choice([0, 0.01, 0.1, 2, 4]))
            await self.replica.passed()
        answer = "".join(f"{word} " for word in words)
        self.world.store.note("model", "answered", text=_question(messages), answer=answer)
        yield Delta(finish_reason="stop")

    async def _think(self, messages, index):
        again = random.Random(f"{self.world.seed} {_question(messages)} {index}")
        chance = again if self.world.chance.random() < 0.5 else self.world.chance
        await asyncio.sleep(self.world.chance.choice([0, 0.1, 1, 4]))
        await self.replica.passed()
        if self.world.chance.random() < 0.02:
            raise ModelError("model_failed", "no luck")
        return chance


def _question(messages):
    return next(m.content for m in reversed(messages) if m.content.startswith("Q "))


class World:
    """One seed: the store, the processes that live, the clients, and what they all saw."""

    def __init__(self, seed, store=SharedStore, runs=Runs, *, losing=False):
        self.losing = losing  # the newest records, now and then
        self.seed, self.chance, self.runs = seed, random.Random(seed), runs
        random.seed(seed)
        self.store = store()
        self.replicas: list[Replica] = []
        self.runs_begun: list[str] = []
        self.steered: list[tuple[str, str]] = []  # the run and id of each message that was taken
        self.tasks: list[asyncio.Task] = []
        self.names = iter(range(100))
        self.begun = now()
        self.seconds = self.chance.choice([10.0, 60.0])
        self.mildness = self.chance.choice([200, 1_000, 5_000])

    # Processes

    def add(self):
        replica = Replica(self.store, f"p{next(self.names)}", self.befalls)
        replica.loses_messages = lambda: self.is_troubled and self.chance.random() < 0.05
        terms = Terms(max_steps=3, max_parallel_calls=2)
        outside = Outside(Model(self, replica), self.tools(replica), NoAgents())
        self.replicas.append(replica.begin(outside, Charter("", terms, self.seconds), self.runs))

    def tools(self, replica):
        async def call(name, key):
            await replica.passed()
            self.store.note("tool", "tool_started", key=key, repeatable=name == "look")
            await asyncio.sleep(self.chance.choice([0, 0.01, 1, 5]))
            if self.chance.random() < 0.1:
                raise ToolError("failed", "no luck")
            return name

        functions = {n: lambda key, n=n: call(n, key) for n in ("charge", "look")}
        return FunctionTools(functions, (tool("charge"), tool("look", read_only=True)))

    @property
    def is_troubled(self):
        return now() < self.begun + TROUBLED

    def befalls(self, call):
        if not self.is_troubled:
            return None
        if self.losing and self.chance.random() < 0.004:
            self.lose()
        what = self.chance.randrange(self.mildness)
        if what == 0:
            self.kill(call.replica)
        elif what == 1:
            call.replica.freeze(self.chance.choice([0.5, 15, 25]))
        elif what < 8:
            return LOST
        elif what < 20:
            return self.chance.choice([0.01, 0.2, 3.0])
        return None

    def lose(self):
        waiting = [run_id for s in self.store.sessions.values() for run_id in s.queue]
        if longer := [r for r in waiting if len(self.store.runs[r].records) > 1]:
            run_id = self.chance.choice(longer)
            most = len(self.store.runs[run_id].records)
            self.store.lose_tail(run_id, self.chance.randrange(1, most))

    def kill(self, replica):
        if replica in self.replicas:
            self.replicas.remove(replica)
            replica.kill()
            asyncio.get_running_loop().call_later(self.chance.choice([0.1, 5]), self.add)

    async def leave(self):
        replica = self.one()
        self.replicas.remove(replica)
        self.add()
        try:
            async with asyncio.timeout(60):
                await replica.run(replica.runs.close(self.chance.choice([0, 2])))
        except (Killed, TimeoutError):
            pass
        replica.kill()

    def one(self):
        if not self.replicas:
            self.add()
        return self.chance.choice(self.replicas)

    async def make_trouble(self):
        for _ in range(2):
            await asyncio.sleep(self.chance.uniform(0, TROUBLED / 2))
            match self.chance.randrange(4):
                case 0:
                    self.store.go_away(self.chance.choice([0.3, 3, 8]))
                case 1:
                    await self.leave()
                case 2 if self.replicas:
                    self.kill(self.one())
                case 3:
                    self.one().freeze(self.chance.choice([15, 25]))

    # Clients

    async def client(self, n):
        await asyncio.sleep(self.chance.choice([0, 0, 0.05, 3, 12]))
        session = self.chance.choice(["s0", "s1"])
        text = f"Q canary-{session}. {n}"
        request = ask(text, session, once=Once(f"k{n}", text))
        while True:
            replica = self.one()
            try:
                async with asyncio.timeout(4):
                    run_id = (await replica.run(replica.runs.start(request))).run_id
                break
            except (Killed, StoreError, Overloaded, TimeoutError):
                await asyncio.sleep(0.3)
        about = {"text": text, "seconds": self.seconds, "canary": f"canary-{session}."}
        self.store.note("client", "accepted", run=run_id, session=session, **about)
        self.runs_begun.append(run_id)
        await asyncio.gather(*(self.reader(f"r{n}.{m}", run_id) for m in range(2)))

    async def reader(self, name, run_id):
        """Read a run to its end, over as many connections as that takes."""
        place = {"seq": 0, "is_over": False}
        while not place["is_over"]:
            replica = self.one()
            patience = self.chance.choice([0.5, 10, 100])
            try:
                async with asyncio.timeout(patience):
                    await replica.run(self.follow(replica, name, run_id, place))
            except (Killed, StoreError, TimeoutError):
                pass
            await asyncio.sleep(self.chance.choice([0, 0.2, 1]))
        self.store.note(name, "reader_ended", run=run_id)

    async def follow(self, replica, name, run_id, place):
        async for batch in replica.runs.follow(run_id, place["seq"]):
            for item in batch:
                if isinstance(item, Record):
                    what = {"event_type": item.event_type, "content": item.content}
                    self.store.note(name, "reader", run=run_id, seq=item.seq, **what)
                    place["seq"] = item.seq
                    place["is_over"] = item.event_type in TERMINAL
                elif isinstance(item, Notice) and item.type == "reset":
                    place["seq"] = item.fields["last_seq"]
                    self.store.note(name, "reset", run=run_id, last_seq=place["seq"])

    async def canceller(self):
        await asyncio.sleep(self.chance.choice([0.05, 1, 8, 20]))
        if self.runs_begun:
            replica = self.one()
            try:
                async with asyncio.timeout(20):
                    await replica.run(replica.runs.cancel(self.chance.choice(self.runs_begun)))
            except (Killed, StoreError, TimeoutError):
                pass

    async def steerer(self):
        for n in range(self.chance.randrange(1, 4)):
            await asyncio.sleep(self.chance.choice([0.05, 1, 3, 8]))
            if not self.runs_begun:
                continue
            run_id, replica = self.chance.choice(self.runs_begun), self.one()
            try:
                async with asyncio.timeout(20):
                    await replica.run(replica.runs.steer(run_id, Steered("more", f"m{n}")))
                self.steered.append((run_id, f"m{n}"))
            except (Killed, StoreError, TimeoutError, RunOver):
                pass

    # The whole

    async def live(self):
        """Let all that happen, and give what is wrong."""
        for _ in range(self.chance.choice([2, 3])):
            self.add()
        clients = [asyncio.create_task(self.client(n)) for n in range(4)]
        others = [asyncio.create_task(self.make_trouble())]
        if self.chance.random() < 0.4:
            others.append(asyncio.create_task(self.canceller()))
        if self.chance.random() < 0.4:
            others.append(asyncio.create_task(self.steerer()))
        _, left = await asyncio.wait(clients, timeout=PATIENCE)
        await asyncio.wait(others, timeout=PATIENCE)
        await asyncio.sleep(2 * ALLOWANCE)  # what is over is taken out of its queue
        for task in left:
            task.cancel()
        broken = [task.exception() for task in {*clients, *others} - left if task.exception()]
        busy = [replica.name for replica in self.replicas if replica.runs.live_count]
        for replica in tuple(self.replicas):
            replica.kill()
        self.note_log()
        return [
            *(f"a client broke: {error!r}" for error in broken),
            *(["a client never came to its end"] if left else []),
            *(f"{name} still has runs" for name in busy),
            *(f"{name} has a queue" for name, s in self.store.sessions.items() if s.queue),
            *([] if self.losing else self.resets()),
            *problems(self.store.history, ALLOWANCE),
            *self.untrue(),
            *self.unheard(),
        ]

    def resets(self):
        readers = [e["actor"] for e in self.store.history if e["kind"] == "reset"]
        return [f"{name} was told of a loss" for name in readers]

    def note_log(self):
        for run_id, run in self.store.runs.items():
            for r in run.records:
                about = {"seq": r.seq, "event_type": r.event_type, "content": r.content}
                t = r.timestamp - 1_000_000.0
                self.store.note("log", "record", run=run_id, session=run.session_id, **about)
                self.store.history[-1]["t"] = t
        for name in self.store.sessions:
            said = self.store.conversation(name)
            said = [m.content for m in said if m.content.startswith("Q ")]
            self.store.note("log", "conversation", session=name, said=said)

    def unheard(self):
        """Look for each message that was taken: it joined once, or its run never began."""
        for run_id, message_id in self.steered:
            records = self.store.runs[run_id].records
            count = sum(r.metadata.get("message_id") == message_id for r in records)
            has_begun = any(r.event_type == "offered" for r in records)
            if count > 1 or (has_begun and not count):
                yield f"{run_id} heard {message_id} {count} times"

    def untrue(self):
        """Hold what is kept of each session against its log."""
        for name, session in self.store.sessions.items():
            said = []
            for run_id in session.runs:
                records = self.store.runs[run_id].records
                try:
                    run = replay(
                        from_row(r.event_type, r.content, r.metadata, self.store.kept)
                        for r in records
                    )
                except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                    yield f"{run_id} cannot be replayed: {error!r}"
                    continue
                said += run.messages
                if run.phase is not Phase.DONE or run.outstanding:
                    yield f"{run_id} is not done"
                calls = Counter(
                    r.metadata["call_id"] for r in records if r.event_type == "tool_call"
                )
                if any(count > 1 for count in calls.values()):
                    yield f"{run_id} has records of a call that was begun twice"
            if tuple(said) != self.store.conversation(name):
                yield f"what is kept of {name} is not what its runs said"


def found(seed, **breaks):
    """Live through a seed, and give what is wrong."""

    async def live():
        return await World(seed, **breaks).live()

    return run_virtually(live())
