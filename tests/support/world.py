"""One seed of the simulation of owners: processes, clients and troubles on one store.

Everything is drawn from the seed, and everything that happens is noted for `support.history`.
"""

import asyncio
import json
import random

from support.doubles import FunctionTools, tool
from support.history import TERMINAL
from support.replicas import LOST, Killed, Replica, ask
from support.shared_store import SharedStore
from support.sqlite_stores import MirroredStore
from support.virtual_time import run_virtually
from support.world_reckoning import ALLOWANCE, wrong_in

from diptych import ports
from diptych.a2a.no_agents import NoAgents
from diptych.core.codec import Record
from diptych.core.errors import (
    AlreadyAnswered,
    AlreadyDecided,
    ApprovalNotFound,
    IdempotencyMismatch,
    InputNotFound,
    ModelError,
    Overloaded,
    RunEnded,
    SessionBusy,
    StoreError,
    ToolError,
)
from diptych.core.events import InputRequest, MessageQueued
from diptych.core.messages import NativeCall
from diptych.core.prompt import DIRECT
from diptych.core.run_settings import RunSettings
from diptych.core.waits import open_waits
from diptych.policy.rules import Policy, Rule
from diptych.ports import Delta, Notice, Reply
from diptych.ports.entries import IdempotencyKey, Lease
from diptych.runs.approvals import DecisionRequest
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.inputs import InputReply
from diptych.runs.service import RunService

TROUBLED = 40.0  # seconds, after which nothing breaks any more
PATIENCE = 1_500.0  # seconds after which what is not done never will be


def now():
    return asyncio.get_running_loop().time()


class World:
    """One seed: the store, the processes that live, the clients, and what they all saw."""

    replica: type[Replica] = Replica
    letter = "p"  # what the names of its processes begin with
    silence = 0.45  # how often its models ask for nothing that can be called
    asks = 0.0  # how often its calls ask for input

    def __init__(self, seed, store=SharedStore, runs=RunService, *, losing=False, native=None):
        self.losing = losing  # the newest records, now and then
        self.is_native = bool(seed % 2) if native is None else native  # how models call
        self.endpoint = random.Random(f"{seed}, tools")
        self.refusals = self.endpoint.choice([0, 0, 0.1, 1])  # of requests with tools
        self.seed, self.chance, self.runs = seed, random.Random(seed), runs
        random.seed(seed)
        self.others = random.Random(f"{seed}, again")
        self.people = random.Random(f"{seed}, people")  # who decide on calls, in half of the seeds
        self.expires = self.people.choice([None, None, None, 1.0, 3.0, 8.0])
        self.questions = random.Random(f"{seed}, questions")
        self.answered: list[tuple[str, dict]] = []  # run and content of the answers that were taken
        self.misled: list[str] = []  # tools that got an answer that is on no record
        self.decided: list[tuple[str, str, str]] = []  # run, call and decision, that were taken
        self.store = store()
        self.replicas: list[Replica] = []
        self.runs_begun: list[str] = []
        self.lost: list[tuple[float, str, list[Record]]] = []  # when, of which run, what
        self.steered: list[tuple[str, str]] = []  # the run and id of each message that was taken
        self.tasks: list[asyncio.Task] = []
        self.names = iter(range(100))
        self.loop = asyncio.get_running_loop()
        self.calm_from = self.loop.time() + TROUBLED
        self.seconds = self.chance.choice([10.0, 60.0])
        self.mildness = self.chance.choice([200, 1_000, 5_000])

    # Processes

    def add(self):
        replica = self.replica(self.store, f"{self.letter}{next(self.names)}", self.befalls)
        replica.loses_messages = lambda: self.is_troubled and self.chance.random() < 0.05
        self.replicas.append(replica.begin(self.backends(replica), self.definition(), self.runs))

    def definition(self):
        mode = "direct" if self.seed % 5 == 3 else "separate"
        settings = RunSettings(
            max_steps=3,
            max_parallel_calls=2,
            answer_mode=mode,
            action_format="auto" if self.is_native else "json",
        )
        return AgentDefinition("", settings, self.seconds)

    def backends(self, replica):
        model, tools = Model(self, replica), self.functions(replica)
        return Backends(model, tools, NoAgents(), policy=Policy(tuple(self.rules())))

    def rules(self):
        """Give the rules of the policy."""
        return [Rule("tool", "charge", "ask", expires=self.expires)] if self.expires else []

    def calls(self, chance, key):
        """Say what the model asks for; each call has a key of its own."""
        return [
            {"tool": chance.choice(["charge", "look"]), "arguments": {"key": f"{key}/{n}"}}
            for n in range(chance.randrange(1, 4))
        ]

    def manner(self):
        """Say in which way a client asks."""
        return {}

    def refuses_tools(self):
        return self.endpoint.random() < self.refusals

    def functions(self, replica):
        async def call(name, key, context):
            await replica.passed()
            await self.question(context)
            self.store.note("tool", "tool_started", key=key, repeatable=name == "look")
            await asyncio.sleep(self.chance.choice([0, 0.01, 1, 5]))
            if self.chance.random() < 0.1:
                raise ToolError("failed", "no luck")
            return name

        names = ("charge", "look")
        functions = {n: lambda key, context, n=n: call(n, key, context) for n in names}
        tools = (tool("charge"), tool("look", read_only=True))
        return FunctionTools(functions, tools, asking=names)

    async def question(self, context):
        """Ask about a call, mostly so that another process can go on with the answer."""
        answer = context.resumed and context.resumed.answer
        while self.questions.random() < self.asks:
            state = self.questions.choice([None, "s", "s"])
            answer = await context.ask(InputRequest("form", "?", {"type": "object"}), state)
        if answer and answer.content and answer.content not in self.logged(context.run_id):
            self.misled.append(context.run_id)

    def logged(self, run_id):
        """Give the contents of all answers on a run's record."""
        records = self.store.runs[run_id].records
        return [r.metadata.get("private", {}).get("content") for r in records]

    async def answerer(self):
        """Answer what is asked, mostly once, wherever, until nobody asks any more."""
        for n in range(400):
            await asyncio.sleep(self.questions.choice([0.05, 0.3, 1, 2]))
            asked = [
                (run_id, wait.call_id)
                for run_id, run in self.store.runs.items()
                if run.status not in TERMINAL
                for wait in open_waits(run.records, "input")
            ]
            if asked:
                where = self.questions.choice(asked)
                action = self.questions.choice(["accept", "accept", "decline", "cancel"])
                replies = [InputReply(action, {"n": n} if action == "accept" else None)]
                replies += self.questions.choice([[], [], [InputReply("accept", {"n": n + 0.5})]])
                await asyncio.gather(*(self.answer(*where, each) for each in replies))

    async def answer(self, run_id, call_id, reply):
        replica = self.one()
        try:
            async with asyncio.timeout(20):
                await replica.run(replica.runs.answer(run_id, call_id, reply))
        except (Killed, StoreError, TimeoutError, Overloaded):
            return  # nobody knows what became of it
        except (RunEnded, AlreadyAnswered, InputNotFound):
            return
        if reply.content and "." not in call_id:
            self.answered.append((run_id, reply.content))

    @property
    def is_troubled(self):
        return self.loop.time() < self.calm_from

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
            records = self.store.runs[run_id].records
            count = self.chance.randrange(1, len(records))
            self.lost.append((now(), run_id, records[-count:]))
            self.store.lose_tail(run_id, count)

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
        key = IdempotencyKey(f"k{n}", text)
        request = ask(text, session, idempotency_key=key, **self.manner())
        asking = [self.taken(request) for _ in range(self.others.choice([1, 1, 2]))]
        run_id = max(await asyncio.gather(*asking))
        if not run_id:
            return  # its session was busy
        seconds = self.seconds + 12 * (self.expires or 0.0)  # waiting is not counted
        seconds += 120 if self.asks else 0
        about = {"text": text, "seconds": seconds, "canary": f"canary-{session}."}
        self.store.note("client", "accepted", run=run_id, session=session, **about)
        self.runs_begun.append(run_id)
        await asyncio.gather(
            self.taken(request, self.others.choice([0.01, 5, 30])),
            self.taken(
                ask(f"other {text}", session, idempotency_key=IdempotencyKey(f"k{n}", "other"))
            ),
            *(self.reader(f"r{n}.{m}", run_id) for m in range(2)),
        )

    async def taken(self, request, later=0.0):
        """Send a request until it is clear what came of it; gives the run, if it is not refused."""
        await asyncio.sleep(later)
        while True:
            replica = self.one()
            try:
                async with asyncio.timeout(4):
                    run_id = (await replica.run(replica.runs.start(request))).run_id
                break
            except IdempotencyMismatch:
                run_id = ""
                break
            except SessionBusy:
                return ""
            except (Killed, StoreError, Overloaded, TimeoutError):
                await asyncio.sleep(0.3)
        about = {"key": request.idempotency_key.key, "body": request.idempotency_key.digest}
        text = request.messages[-1].content
        self.store.note("client", "asked_once", **about, text=text, run=run_id)
        return run_id

    async def reader(self, name, run_id):
        """Read a run to its end, over as many connections as that takes."""
        place = {"seq": 0, "is_over": False}
        while not place["is_over"]:
            replica = self.one()
            patience = self.chance.choice([0.5, 10, 100])
            try:
                async with asyncio.timeout(patience):
                    await replica.run(self.subscribe(replica, name, run_id, place))
            except (Killed, StoreError, TimeoutError):
                pass
            await asyncio.sleep(self.chance.choice([0, 0.2, 1]))
        self.store.note(name, "reader_ended", run=run_id)

    async def subscribe(self, replica, name, run_id, place):
        async for batch in replica.runs.subscribe(run_id, place["seq"]):
            for item in batch:
                if isinstance(item, Record):
                    what = {"event_type": item.event_type, "content": item.content}
                    self.store.note(name, "reader", run=run_id, seq=item.seq, **what)
                    place["seq"] = item.seq
                    if item.event_type in TERMINAL:
                        place["is_over"] = True
                        break
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
        """Send messages to runs: to steer, or to follow up."""
        for n in range(self.chance.randrange(1, 4)):
            await asyncio.sleep(self.chance.choice([0.05, 1, 3, 8]))
            if not self.runs_begun:
                continue
            run_id, replica = self.chance.choice(self.runs_begun), self.one()
            try:
                async with asyncio.timeout(20):
                    is_follow_up = self.people.random() < 0.4
                    message = MessageQueued("more", f"m{n}", is_follow_up=is_follow_up)
                    await replica.run(replica.runs.send_message(run_id, message))
                self.steered.append((run_id, f"m{n}"))
            except (Killed, StoreError, TimeoutError, RunEnded):
                pass

    async def decider(self):
        """Decide on what waits, mostly once, wherever, whatever becomes of it."""
        for _ in range(80):
            await asyncio.sleep(self.people.choice([0.05, 0.3, 1, 2]))
            waiting = [
                (run_id, approval.call_id, approval.requested.content)
                for run_id, run in self.store.runs.items()
                if run.status not in TERMINAL
                for approval in open_waits(run.records, "approval")
            ]
            if not waiting:
                continue
            run_id, call_id, call = self.people.choice(waiting)
            request = self.decision_on(call)
            again = self.people.choice([1, 1, 2])
            requests = [request, DecisionRequest("reject")][:again]
            await asyncio.gather(*(self.decide(run_id, call_id, each) for each in requests))

    def decision_on(self, call):
        what = self.people.choice(["approve", "approve", "reject", "edit", "replace"])
        if what == "edit":
            return DecisionRequest(what, arguments=call["arguments"])
        if what == "replace":
            return DecisionRequest(what, call={**call, "tool": "look"})
        return DecisionRequest(what)

    async def decide(self, run_id, call_id, request):
        replica = self.one()
        try:
            async with asyncio.timeout(20):
                await replica.run(replica.runs.answer(run_id, call_id, request))
            self.decided.append((run_id, call_id, request.decision))
        except (Killed, StoreError, TimeoutError, Overloaded):
            pass  # nobody knows what became of it
        except (RunEnded, AlreadyDecided, ApprovalNotFound):
            pass

    # The whole

    async def live(self):
        """Let all that happen, and give what is wrong."""
        self.begin()
        clients = [asyncio.create_task(self.client(n)) for n in range(4)]
        others = [asyncio.create_task(work) for work in self.others_at_work()]
        _, left = await asyncio.wait(clients, timeout=PATIENCE)
        await asyncio.wait(others, timeout=PATIENCE)
        await self.come_to_rest()
        for task in left:
            task.cancel()
        broken = [task.exception() for task in {*clients, *others} - left if task.exception()]
        return [
            *(f"a client broke: {error!r}" for error in broken),
            *(["a client never came to its end"] if left else []),
            *self.end(),
        ]

    def begin(self):
        for _ in range(self.chance.choice([2, 3])):
            self.add()

    def others_at_work(self):
        """Give the work of all others than clients."""
        yield self.make_trouble()
        if self.chance.random() < 0.4:
            yield self.canceller()
        if self.chance.random() < 0.4:
            yield self.steerer()
        if self.expires is not None:
            yield self.decider()
        if self.asks:
            yield self.answerer()

    async def come_to_rest(self):
        """Wait until what is over is taken out of its queue."""
        await asyncio.sleep(2 * ALLOWANCE)

    def end(self):
        """End all processes, and give what is wrong."""
        busy = [replica.name for replica in self.replicas if replica.runs.active_count]
        for replica in tuple(self.replicas):
            replica.kill()
        return [*(f"{name} still has runs" for name in busy), *wrong_in(self)]


def found(seed, world=World, **breaks):
    """Live through a seed, and give what is wrong."""

    async def live():
        return await world(seed, **breaks).live()

    return run_virtually(live())


class LocalReplica(Replica):
    """A process over SQLite: what its openers that are cancelled have claimed is released."""

    async def open(self, first, token, idempotency_key=None, **conditions):
        try:
            return await super().open(first, token, idempotency_key, **conditions)
        except asyncio.CancelledError:
            if not self.is_dead:
                self.store.release(Lease(first.session_id, token))
            raise

    async def release(self, lease, *, hand_over=False):
        try:
            await super().release(lease, hand_over=hand_over)
        except StoreError:
            self.store.release(lease)  # as the store itself does later
            raise


class Asking(World):
    """A world whose tools ask people."""

    asks = 0.4


class Alone(World):
    """A world of one process at a time, over a store in SQLite."""

    replica = LocalReplica

    def __init__(self, seed, **rest):
        super().__init__(seed, MirroredStore, **rest)

    def begin(self):
        self.add()

    def add(self):
        if not self.replicas:
            super().add()

    def befalls(self, call):
        what = super().befalls(call)
        return None if what is LOST and call.is_done else what  # no connection loses a reply

    def kill(self, replica):
        if replica in self.replicas:
            super().kill(replica)
            self.store.process_died()

    async def leave(self):
        """End in good order; the next process begins after that."""
        if not self.replicas:
            return
        replica = self.replicas[0]
        try:
            async with asyncio.timeout(60):
                await replica.run(replica.runs.close(self.chance.choice([0, 2])))
        except (Killed, TimeoutError):
            pass
        self.kill(replica)

    def end(self):
        try:
            return super().end()
        finally:
            self.store.close()


# Its model


class Model(ports.Model):
    """Says anything, most of it again if it is asked again; knows a session by its questions."""

    def __init__(self, world, replica):
        self.world, self.replica = world, replica

    async def complete(self, request):
        chance = await self._think(request)
        if request.tools and self.world.refuses_tools():
            raise ModelError("tools_refused", "no tools")
        if chance.random() < self.world.silence:
            said = chance.choice(["{}", "<>", "I know it.", '{"tool": '])
            is_broken = said == '{"tool": ' and request.tools
            return Reply("", calls=(NativeCall("a", "look", said),)) if is_broken else Reply(said)
        calls = self.world.calls(chance, _key(request))
        return _native(calls) if request.tools else Reply(json.dumps(calls))

    async def stream(self, request):
        chance = await self._think(request)
        if request.tools and self.world.refuses_tools():
            raise ModelError("tools_refused", "no tools")
        is_direct = request.tools or request.messages[-1].content.endswith(DIRECT)
        if is_direct and chance.random() < 0.6:
            calls = self.world.calls(chance, _key(request))
            if request.tools and chance.random() < 0.5:
                reply = _native(calls)
                yield Delta(chance.choice([reply.text, "a b " * 60]))
                yield Delta(finish_reason="stop", calls=reply.calls)
            else:
                yield Delta(chance.choice(["{}", json.dumps(calls)]), finish_reason="stop")
            return
        heard = {question.split()[1] for question in _questions(request.messages)}
        words = [*sorted(heard), *chance.choices("abcd", k=chance.randrange(6))]
        for word in words:
            yield Delta(f"{word} ")
            await asyncio.sleep(chance.choice([0, 0.01, 0.1, 2, 4]))
            await self.replica.passed()
        answer = "".join(f"{word} " for word in words)
        self.world.store.note("model", "answered", text=_question(request.messages), answer=answer)
        yield Delta(finish_reason="stop")

    async def _think(self, request):
        again = random.Random(f"{self.world.seed} {_question(request.messages)} {request.index}")
        chance = again if self.world.chance.random() < 0.5 else self.world.chance
        await asyncio.sleep(self.world.chance.choice([0, 0.1, 1, 4]))
        await self.replica.passed()
        if self.world.chance.random() < 0.02:
            raise ModelError("model_failed", "no luck")
        return chance


def _key(request):
    return f"{_question(request.messages)}/{request.index}"


def _native(calls):
    """Ask for calls in the API's form; the last of them twice, under ids as some servers give."""
    asked = []
    for n, call in enumerate(calls):
        name = call.get("tool") or f"delegate_to_{call['agent']}"
        arguments = call.get("arguments") or {"task": call["task"]}
        asked.append(NativeCall(f"a{n}", name, json.dumps(arguments)))
    return Reply("Hm.", calls=(*asked, NativeCall("again", asked[-1].name, asked[-1].arguments)))


def _question(messages):
    return _questions(messages)[-1]


def _questions(messages):
    """All that was asked; neighbours of one role come as one message."""
    lines = [line for m in messages if m.role == "user" for line in m.content.splitlines()]
    return [line for line in lines if line.startswith("Q ")]
