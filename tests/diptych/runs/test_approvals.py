"""Approvals in one process: who waits, what a decision leads to, and that it counts once."""

import asyncio

import pytest
from support.doubles import FunctionTools, facts, house, tool
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, virtually

from diptych.core.codec import Record
from diptych.core.errors import AlreadyDecided, InvalidRequest, RunEnded
from diptych.core.events import MessageQueued
from diptych.core.messages import ChildRun
from diptych.core.run_settings import RunSettings
from diptych.core.waits import open_waits
from diptych.policy.rules import Policy, Rule
from diptych.ports import ChildEvent
from diptych.runs.approvals import DecisionRequest
from diptych.runs.definition import AgentDefinition
from diptych.runs.waits import is_answered_by

ASK = Policy((Rule("tool", "pay", "ask", reason="money"), Rule("agent", "*", "ask")))
PAY = '{"tool": "pay", "arguments": {"amount": 5}}'
LOOK = '{"tool": "look"}'
CALL = "call_1_1"


async def pay(amount):
    return f"paid {amount}"


async def look():
    return "seen"


async def helper(request, progress):
    return f"did {request.task}"


def home(*replies, settings=None, deadline=None, **rest):
    definition = AgentDefinition("", settings or RunSettings(), deadline)
    rest = {"tools": {"pay": pay, "look": look}, "policy": ASK, **rest}
    return house(*replies, definition=definition, **rest)


async def asked(place, run_id=None):
    """Wait until a call waits, and give its run's id."""
    while True:
        for entry in await place.runs.waiting_runs(10):
            if run_id in (None, entry.run_id):
                return entry.run_id
        await asyncio.sleep(0.01)


async def begun(*replies, **rest):
    place = home(*replies, **rest)
    asking = asyncio.create_task(place.ask())
    return place, asking, await asked(place)


def decision(what, **about):
    return DecisionRequest(what, **about)


async def results(place, run_id):
    return [e.result.text for e in await place.events(run_id) if hasattr(e, "result")]


@virtually
async def test_an_approved_call_is_made():
    place, asking, run_id = await begun(PAY, "{}", "Paid.")
    assert place.tools.called == []
    [approval] = open_waits(await place.store.read(run_id))
    assert approval.call_id == CALL
    assert approval.requested.content == {"tool": "pay", "arguments": {"amount": 5}}
    assert approval.requested.metadata["reason"] == "money"
    assert approval.requested.metadata["expires_at"] == 1_000_600.0
    await place.runs.answer(run_id, CALL, decision("approve", subject="user:eve"))
    assert facts(await asking) == [
        *("user_message", "approval_requested", "approval_decided"),
        *("tool_call", "tool_result", "agent_response"),
    ]
    assert place.tools.called == [("pay", {"amount": 5})]
    assert (await place.store.entry(run_id)).status == "completed"


@virtually
async def test_an_edited_call_is_made_as_edited_and_the_model_is_told():
    place, asking, run_id = await begun(PAY, "{}", "Paid.")
    await place.runs.answer(run_id, CALL, decision("edit", arguments={"amount": 1}))
    await asking
    assert place.tools.called == [("pay", {"amount": 1})]
    told = place.model.requests[1][-1].content
    assert "It was made as tool pay (amount: 1)." in told
    assert "paid 1" in told


@virtually
async def test_a_delegation_can_be_asked_about_edited_and_replaced():
    errand = '{"agent": "helper", "task": "a"}'
    place, asking, run_id = await begun(errand, "{}", "Done.", agents={"helper": helper})
    await place.runs.answer(run_id, CALL, decision("edit", arguments={"task": "b"}))
    await asking
    assert [d.task for d in place.agents.delegations] == ["b"]


@virtually
async def test_what_the_policy_forbids_cannot_be_edited_in():
    rules = (*ASK._rules, Rule("tool", "look", "deny", reason="never"))
    place, asking, run_id = await begun(PAY, "{}", "No.", policy=Policy(rules))
    await place.runs.answer(run_id, CALL, decision("replace", call={"tool": "look"}))
    await asking
    assert place.tools.called == []
    assert "denied: never" in place.model.requests[1][-1].content


@virtually
async def test_siblings_go_on_and_what_waits_takes_no_place():
    reply = f"[{PAY}, {LOOK}, " + '{"id": "z", "tool": "look"}]'
    place, asking, run_id = await begun(
        reply, "{}", "Done.", settings=RunSettings(max_parallel_calls=1)
    )
    await asyncio.sleep(1)
    assert [name for name, _ in place.tools.called] == ["look", "look"]
    assert (await place.store.entry(run_id)).status == "input-required"
    await place.runs.answer(run_id, CALL, decision("approve"))
    await asking
    assert [name for name, _ in place.tools.called] == ["look", "look", "pay"]


@virtually
async def test_results_that_look_like_references_are_not_filled_again():
    async def tell():
        return "say ${a}"

    reply = '[{"id": "a", "tool": "tell"}, {"tool": "pay", "arguments": {"amount": "${a}"}}]'
    place, asking, run_id = await begun(reply, "{}", "Paid.", tools={"tell": tell, "pay": pay})
    await place.runs.answer(run_id, "call_1_2", decision("approve"))
    await asking
    assert place.tools.called[-1] == ("pay", {"amount": "say ${a}"})


@virtually
async def test_a_decision_that_comes_after_the_expiry_is_none_though_nobody_owned_the_run_then():
    store, tools = SharedStore(), FunctionTools({"pay": pay}, (tool("pay"),))
    policy = Policy((Rule("tool", "pay", "ask", expires=5.0),))
    about = {"tools": tools, "policy": policy}
    a, b = (replica(store, n, PAY, "{}", "Not paid.", **about) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    await asyncio.sleep(5)
    assert "owner_changed" not in [record.event_type for record in log(store, run_id)]
    with pytest.raises(AlreadyDecided, match=r"reject by nobody \(it expired\)"):
        await b.run(b.runs.answer(run_id, CALL, decision("approve")))
    await told(b, run_id)
    assert tools.called == []


@virtually
async def test_a_message_supersedes_what_waits():
    place, asking, run_id = await begun(PAY, "{}", "Hm.")
    await place.runs.send_message(run_id, MessageQueued("stop that", "m1"))
    with pytest.raises((AlreadyDecided, RunEnded)):  # its run may have ended meanwhile
        await place.runs.answer(run_id, CALL, decision("approve"))
    await asking
    assert place.tools.called == []
    assert await results(place, run_id) == ["skipped: superseded by a new message"]


@virtually
async def test_the_callers_deadline_holds_while_a_call_waits():
    place = home(PAY)
    items = await place.ask(seconds=20.0)
    assert items[-1].metadata["code"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (decision("edit", arguments={"amount": "much"}), "arguments.amount"),
        (decision("edit"), "arguments"),
        (decision("approve", arguments={}), "arguments"),
        (decision("replace"), "call"),
        (decision("replace", call={"tool": "nope"}), "call.tool"),
        (decision("replace", call={"agent": "nope", "task": "x"}), "call.agent"),
        (decision("replace", call={"tool": "pay", "arguments": {}}), "call.arguments"),
        (decision("replace", call={"tool": "pay", "agent": "x"}), "call"),
    ],
)
@virtually
async def test_a_decision_that_makes_no_sense_is_refused_with_its_path(request_, path):
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
    }
    tools = FunctionTools({"pay": pay}, (tool("pay", schema=schema),))
    place, asking, run_id = await begun(PAY, "{}", "Paid.", tools=tools)
    with pytest.raises(InvalidRequest) as caught:
        await place.runs.answer(run_id, CALL, request_)
    assert caught.value.param == path
    await place.runs.answer(run_id, CALL, decision("approve"))
    await asking


@virtually
async def test_a_decision_below_that_came_before_the_end_is_on_record():
    told = []

    async def worker(request, progress):
        progress(ChildRun("http://worker", "r-2"))
        about = {"call_id": "call_1_1", "step": 1, "expires_at": 10.0**9}
        progress(
            ChildEvent("approval_requested", (), 1, 1.0, {"tool": "pay", "arguments": {}}, about)
        )
        told.append(progress)
        await asyncio.Event().wait()

    delegation = '{"agent": "worker", "task": "pay"}'
    place = home(delegation, agents={"worker": worker}, policy=Policy())
    asking = asyncio.create_task(place.ask())
    run_id = await asked(place)
    cancelling = asyncio.create_task(place.runs.cancel(run_id))
    await asyncio.sleep(0)  # the end is in the inbox by now
    decided = {"call_id": "call_1_1", "decision_id": "d"}
    told[0](ChildEvent("approval_decided", (), 2, 1.0, "approve", decided))
    await asyncio.gather(asking, cancelling)
    records = await place.store.read(run_id)
    assert [r.content for r in records if r.event_type == "approval_decided"] == ["approve"]


def test_a_decision_on_another_call_is_not_this_one_whatever_its_id():
    """Ids of decisions below come from other agents."""
    about = {"call_id": "call_1_1.call_1_1", "path": ["call_1_1", "call_1_1"]}
    asked = record(2, "approval_requested", call_id="call_1_2")
    records = [record(1, "approval_requested", **about), asked]
    records.append(record(3, "approval_decided", **about, decision_id="d"))
    assert not is_answered_by(records, asked, "d")
    own = record(4, "approval_decided", call_id="call_1_2", decision_id="d")
    assert is_answered_by([*records, own], asked, "d")


def record(seq, event_type, **metadata):
    return Record("run", "talk", seq, event_type, 1.0, "approve", metadata)
