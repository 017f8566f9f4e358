"""Seeded simulation: several processes on one store, with faults at every call of it.

Each seed makes two or three processes whose models, tools and clients do random things at random
times. Processes are killed, frozen and asked to leave, calls of the store and their replies are
lost, it goes away, and messages between processes get lost (`support.world`). Whatever happens,
`support.history` must find that every promise was kept.

The full world has budgets of runs, sessions and the day, hooks at all places, messages at any call
of the store, and an agent below whose processes die (`support.full_world`): no reservation stays,
no budget is overdrawn by more than one call, each call that was begun has one result, each task is
begun once, each message is in the conversation once, and nothing is left waiting. A quarter of its
seeds last beyond midnight.

In seeds that are odd the models call natively, and some endpoints refuse that now and then.

`DIPTYCH_SEEDS=10000 pytest tests/diptych/runs/test_simulation_owners.py` tries that many seeds,
half as many with a store that loses records, and in the full world (`support.seeds`). A seed that
once failed stays in `ONCE_FAILED`, `ONCE_LOST` or `ONCE_FAILED_FULL`.
"""

import asyncio
from dataclasses import replace

import pytest
from support.full_world import AskingFullWorld, FullWorld
from support.seeds import NATIVE, blocks, quiet
from support.shared_store import SharedStore
from support.world import Alone, Asking, found
from support.world_below import Workers

from diptych.budgets.shared_budget_meter import SharedBudgetMeter
from diptych.core.events import CallJudged
from diptych.runs import inputs
from diptych.runs.service import RunService

SEEDS = 130  # the rarest of the promises broken below is found at seed 63
ONCE_FAILED = [27, 41, 69, 84, 119, 131]
ONCE_LOST = [65, 99, 226, 864, 1427, 1991, 2257, 3042, 4482]
ONCE_FAILED_FULL = [5, 16, 109, 148, 204, 210, 322, 1309, 1815, 2540, 2561]
ONCE_FAILED_FULL += [5043, 5095, 6454, 6813, 7521, 9516, 22280]


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    with quiet():
        yield


@pytest.mark.parametrize("seeds", blocks(SEEDS), ids=str)
def test_whatever_breaks_what_is_promised_holds(seeds):
    wrong = {seed: list(found(seed, native=NATIVE)) for seed in seeds}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.parametrize(
    ("world", "losing"),
    [(Asking, {}), (Asking, {"losing": True}), (AskingFullWorld, {})],
    ids=["one agent", "a store that loses", "everything"],
)
@pytest.mark.parametrize("seeds", blocks(SEEDS, part=4), ids=str)
def test_whatever_breaks_what_is_promised_of_questions_holds(seeds, world, losing, monkeypatch):
    monkeypatch.setattr(inputs, "INPUT_SECONDS", 20.0)  # questions that the store loses take it
    wrong = {seed: found(seed, world, native=NATIVE, **losing) for seed in seeds}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_seeds_that_once_failed(seed):
    assert found(seed, native=NATIVE) == []


@pytest.mark.parametrize("seeds", blocks(SEEDS, part=2), ids=str)
def test_of_a_store_that_loses_its_newest_records_only_what_nobody_can_know_is_excused(seeds):
    """What that is stands in docs/durable.md, and in `support.history` where records are `lost`."""
    wrong = {seed: found(seed, losing=True, native=NATIVE) for seed in seeds}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.parametrize("seed", ONCE_LOST)
def test_seeds_that_once_failed_where_the_store_loses_records(seed):
    assert found(seed, losing=True, native=NATIVE) == []


@pytest.mark.parametrize("seeds", blocks(SEEDS, part=2), ids=str)
def test_whatever_breaks_what_is_promised_of_everything_holds(seeds):
    wrong = {seed: found(seed, FullWorld, native=NATIVE) for seed in seeds}
    assert {seed: what for seed, what in wrong.items() if what} == {}


@pytest.mark.parametrize("seed", ONCE_FAILED_FULL)
def test_seeds_that_once_failed_with_everything(seed):
    assert found(seed, FullWorld, native=NATIVE) == []


@pytest.mark.parametrize("seeds", blocks(SEEDS, part=2), ids=str)
def test_a_process_that_dies_over_sqlite_is_continued_by_the_next(seeds):
    wrong = {seed: found(seed, Alone, native=NATIVE) for seed in seeds}
    assert {seed: what for seed, what in wrong.items() if what} == {}


# Each promise broken on purpose: one that is not looked at is none


def _first_problem(sign, **breaks):
    for seed in range(600):
        for problem in found(seed, **breaks):
            if sign in problem:
                return problem
    return None


class Unfenced(SharedStore):
    """Takes what a stale owner writes."""

    def check(self, lease):
        if lease.session_id in self.sessions:
            return
        super().check(lease)


class Stuttering(SharedStore):
    """Adds records that are sent again a second time."""

    def _missing(self, run, records):
        return records


class Forgetful(SharedStore):
    """Does not say which sessions have no owner."""

    def unowned_sessions(self):
        return []


class Taking(SharedStore):
    """Takes a request that is sent again for a new one."""

    def open(self, actor, first, token, idempotency_key, **conditions):
        return super().open(actor, first, token, None, **conditions)


class Careless(SharedStore):
    """Does not look at the body that a key was used for."""

    def open(self, actor, first, token, idempotency_key, **conditions):
        key = idempotency_key and replace(idempotency_key, digest="")
        return super().open(actor, first, token, key, **conditions)


class Unaware(SharedStore):
    """Does not know that it has lost anything."""

    def may_be_truncated(self, run_id):
        return False


class Repeating(SharedStore):
    """Notes what a run said whenever it is told."""

    def finish_run(self, run_id, said, lease):
        session = self.sessions[lease.session_id]
        if run_id not in session.queue:
            session.messages.append(tuple(said))
        return super().finish_run(run_id, said, lease)


class Leaking(SharedStore):
    """Gives each session what all of them said."""

    def conversation(self, session_id):
        return tuple(m for name in self.sessions for m in super(Leaking, self).conversation(name))


class Skipping(RunService):
    """Leaves one record out of what it tells."""

    async def subscribe(self, run_id, after=0):
        async for batch in super().subscribe(run_id, after):
            if kept := [item for item in batch if getattr(item, "seq", 0) != 4]:
                yield kept


class Restarting(RunService):
    """Tells all from the start, wherever the reader is."""

    def subscribe(self, run_id, after=0):
        return super().subscribe(run_id, 0)


@pytest.mark.parametrize(
    ("sign", "breaks"),
    [
        pytest.param("G4", {"store": Unfenced}, id="a store that does not check the fence"),
        pytest.param("G2", {"store": Stuttering}, id="an append that duplicates"),
        pytest.param("G2", {"runs": Skipping}, id="a reader who misses a record"),
        pytest.param("G2", {"runs": Restarting}, id="a reader who is told twice"),
        pytest.param("G1", {"store": Forgetful}, id="nobody takes over"),
        pytest.param("G5", {"store": Taking}, id="a request that is two runs"),
        pytest.param("G5", {"store": Careless}, id="a key that stands for two requests"),
        pytest.param(
            "G2", {"store": Unaware, "losing": True}, id="a reader who is told of no loss"
        ),
        pytest.param("G3", {"store": Unaware, "losing": True}, id="a call that is lost and made"),
        pytest.param("I8", {"store": Leaking}, id="a session that hears of another"),
        pytest.param("the conversation", {"store": Repeating}, id="a run that is said twice"),
    ],
)
def test_a_broken_promise_is_found(sign, breaks):
    assert _first_problem(sign, **breaks)


def test_calls_that_are_sent_again_are_found(monkeypatch):
    monkeypatch.setattr("diptych.core.pending.is_repeatable", lambda call, catalog: True)
    assert _first_problem("G3")


def test_answers_that_go_on_although_they_differ_are_found(monkeypatch):
    monkeypatch.setattr("diptych.runs.answer_filter.AnswerReplay.finish", lambda self: "")
    assert _first_problem("G2")


# The same in the full world


def told_before_recorded(patch):
    """Subscribers are told of records that the store does not have yet."""

    async def append(self, items):
        records = self._next_records([i for i in items if not hasattr(i, "fields")])
        for record in records:
            self._add(record)
        if records:
            await self._append_to_store(records)

    patch.setattr("diptych.runs.run_log.RunLog.append", append)


def unsettled(patch):
    """What is reserved stays reserved."""

    def settle(self, accounts, entry, used, *, is_recorded=True):
        return asyncio.ensure_future(asyncio.sleep(0))

    patch.setattr(SharedBudgetMeter, "_settle", settle)


def uncounted(patch):
    """The usage that a dead owner logged is never charged."""

    async def charge_log(self):
        self._must_charge_log = False

    patch.setattr(SharedBudgetMeter, "_charge_log", charge_log)


def overdrawn(patch):
    """The ledger lets everything be reserved."""

    patch.setattr("diptych.stores.ledger._refusal", lambda *_: None)


def unasked(patch):
    """Hooks are not asked about calls."""

    async def before_call(self, about, call, catalog):
        return CallJudged(call.id, None, None, "")

    patch.setattr("diptych.runs.hooks.Hooks.before_call", before_call)


def unseen_results(patch):
    """Results go to the model as they are."""

    async def after_call(self, about, call, result):
        return result, ""

    patch.setattr("diptych.runs.hooks.Hooks.after_call", after_call)


def unvalidated(patch):
    """Any answer is an answer."""

    async def validate_answer(self, about):
        return "", ""

    patch.setattr("diptych.runs.hooks.Hooks.validate_answer", validate_answer)


def lost_messages(patch):
    """A new owner does not look for the messages that came meanwhile."""
    patch.setattr("support.shared_store.SharedStore.pending_signals", lambda self, run_id: [])


def doubled_messages(patch):
    """A message that is sent again counts again."""
    patch.setattr("diptych.runs.runner.takes", lambda run, item: True)


def sent_again(patch):
    """A delegation is sent again by a new owner."""

    patch.setattr(Workers, "_find", lambda self, context_id: self._send(self.newest))
    sent = Workers.delegate

    async def delegate(self, request, progress):
        self.newest = request
        return await sent(self, request, progress)

    patch.setattr(Workers, "delegate", delegate)


def never_enough(patch):
    """The same may be done any number of times."""
    patch.setattr("diptych.policy.rules.MOST_REPEATS", 99)


@pytest.mark.parametrize(
    ("broken", "sign"),
    [
        (told_before_recorded, "G2"),
        (unsettled, "still holds"),
        (uncounted, "the ledger has"),
        (overdrawn, " were made, of "),
        (unasked, "did not want it"),
        (unseen_results, "has not seen"),
        (unvalidated, "no hook let"),
        (lost_messages, "heard"),
        (doubled_messages, "heard"),
        (sent_again, "was begun 2 times"),
        (never_enough, "poked again"),
    ],
)
def test_a_broken_promise_is_found_with_everything(broken, sign, monkeypatch):
    broken(monkeypatch)
    assert _first_problem(sign, world=FullWorld)
