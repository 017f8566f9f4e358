"""Hooks: what they say of a call, a result, a step and an answer, and what fails closed."""

import asyncio
import json
from dataclasses import replace

import pytest
from support.doubles import FunctionTools, house, tool
from support.replicas import LOST, replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, virtually

from diptych.budgets.recorded_use import recorded_use
from diptych.core.budget import Budget
from diptych.core.catalog import Catalog
from diptych.core.messages import ChildRun, Message, ToolCall, Used
from diptych.core.run_settings import RunSettings
from diptych.policy.rules import Policy, Rule
from diptych.runs.approvals import DecisionRequest
from diptych.runs.definition import AgentDefinition
from diptych.runs.hooks import ContextProvider, Hook, Hooks
from diptych.runs.request import RunRequest
from diptych_cel.expressions import check_expression

CALL = '{"tool": "pay", "arguments": {"amount": 500}}'
ANSWERS = (CALL, "{}", "Paid.")
SCHEMA = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}

DEEP = json.loads("[" * 100 + "]" * 100)


class Asked:
    """A hook that remembers what it was asked, and replies what it is told to, in order."""

    def __init__(self, *replies, seconds=0.0):
        self.replies, self.questions, self.seconds = list(replies), [], seconds

    async def __call__(self, question):
        self.questions.append(question)
        await asyncio.sleep(self.seconds)
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, BaseException):
            raise reply
        return reply


def at(point, *asks, timeout=2.0):
    return Hooks(tuple(Hook(f"hook{n}", point, ask, timeout) for n, ask in enumerate(asks)))


async def pay(amount):
    return f"paid {amount}"


def rooms_with(hooks, *replies, settings=None, **rest):
    tools = FunctionTools({"pay": pay}, (tool("pay", schema=SCHEMA),))
    definition = AgentDefinition("", settings or RunSettings())
    return house(*replies or ANSWERS, tools=tools, hooks=hooks, definition=definition, **rest)


def of(items, event_type):
    return [item for item in items if getattr(item, "event_type", "") == event_type]


@virtually
async def test_a_call_that_no_hook_minds_is_made_as_it_is():
    ask = Asked()
    rooms = rooms_with(at("beforeCall", ask))
    items = await rooms.ask()
    assert rooms.tools.called == [("pay", {"amount": 500})]
    (question,) = ask.questions
    assert question["at"] == "beforeCall"
    assert question["call"] == {"id": "call_1_1", "tool": "pay", "arguments": {"amount": 500}}
    assert (question["step"], question["question"]) == (1, "hi")
    (judged,) = of(items, "call_judged")
    assert (judged.content, judged.metadata) == ("allow", {"call_id": "call_1_1"})


@virtually
async def test_each_hook_sees_the_call_as_the_one_before_left_it_and_it_is_made_so():
    first, second = (
        Asked({"arguments": {"amount": 50}}),
        Asked({"arguments": {"amount": 40}}),
    )
    rooms = rooms_with(at("beforeCall", first, second))
    items = await rooms.ask()
    assert second.questions[0]["call"]["arguments"] == {"amount": 50}
    assert rooms.tools.called == [("pay", {"amount": 40})]
    (judged,) = of(items, "call_judged")
    assert judged.metadata["hook"] == "hook1"
    assert of(items, "tool_call")[0].content == {"tool": "pay", "arguments": {"amount": 40}}
    assert "40" not in rooms.model.requests[1][-1].content.replace("paid 40", "")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (RuntimeError("secret"), "the hook hook0 failed: RuntimeError"),
        (asyncio.CancelledError("secret"), "the hook hook0 failed: CancelledError"),
        (SystemExit("secret"), "the hook hook0 failed: SystemExit"),
        ([1], "not a JSON object"),
        ({"arguments": "all"}, "not a JSON object"),
        ({"arguments": {"amount": "all"}}, "invalid arguments"),
        ({"arguments": {"amount": 2**70}}, "arguments that JSON cannot represent"),
        ({"arguments": {"amount": 1, "at": {1}}}, "arguments that JSON cannot represent"),
        ({"arguments": {"amount": 1, "at": DEEP}}, "arguments nested more than 64 levels deep"),
        ({"allow": True}, "a field that beforeCall does not have: allow"),
        ({"deny": 3}, "a deny that is not text"),
    ],
)
@virtually
async def test_a_hook_before_a_call_that_fails_denies_by_its_name(reply, why):
    rooms = rooms_with(at("beforeCall", Asked(reply)))
    await rooms.ask()
    assert rooms.tools.called == []
    told_model = rooms.model.requests[1][-1].content
    assert why in told_model
    assert "hook0" in told_model
    assert "secret" not in told_model


@virtually
async def test_calls_are_judged_one_after_another_and_take_no_place_meanwhile():
    running = []

    class Counting(Asked):
        async def __call__(self, question):
            running.append("+")
            await super().__call__(question)
            running.append("-")

    async def slow(**_):
        running.append("call")
        await asyncio.sleep(100)

    two = '[{"tool": "slow"}, {"tool": "slow", "arguments": {"n": 2}}]'
    rooms = house(
        two,
        "{}",
        "Hi.",
        tools={"slow": slow},
        hooks=at("beforeCall", Counting(seconds=1)),
        definition=AgentDefinition("", RunSettings(max_parallel_calls=1)),
    )
    await rooms.ask()
    assert "".join(running).replace("call", "") == "+-+-", "one after another"
    assert "".join(running).endswith("-call")
    assert running.index("call") < len(running) - 2, "the second is judged while the first runs"


@virtually
async def test_the_policy_decides_on_what_the_hooks_have_left():
    much = check_expression("args.amount > 100", "tool")
    hooks = at("beforeCall", Asked({"arguments": {"amount": 5}}))
    rooms = rooms_with(hooks, policy=Policy((Rule("tool", "pay", "deny", much, "no"),)))
    await rooms.ask()
    assert rooms.tools.called == [("pay", {"amount": 5})]


@virtually
async def test_what_somebody_has_edited_is_judged_again_and_not_rewritten():
    ask = Asked(None, {"arguments": {"amount": 7}})
    rooms = rooms_with(at("beforeCall", ask), policy=asking())
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    await asyncio.sleep(1)
    request = DecisionRequest("edit", "", {"amount": 6})
    await rooms.runs.answer(entry.run_id, "call_1_1", request)
    await rooms.told(entry.run_id)
    assert [q["call"]["arguments"]["amount"] for q in ask.questions] == [500, 6]
    assert rooms.tools.called == []
    assert "tried to change an approved call" in rooms.model.requests[1][-1].content


@virtually
async def test_what_is_approved_as_it_is_is_not_judged_again():
    ask = Asked({"arguments": {"amount": 7}})
    rooms = rooms_with(at("beforeCall", ask), policy=asking())
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    await asyncio.sleep(1)
    await rooms.runs.answer(entry.run_id, "call_1_1", DecisionRequest("approve"))
    await rooms.told(entry.run_id)
    assert len(ask.questions) == 1
    assert rooms.tools.called == [("pay", {"amount": 7})]


def asking():
    return Policy((Rule("tool", "pay", "ask"),))


@virtually
async def test_a_result_can_be_replaced_and_the_record_says_by_whom():
    ask = Asked({"result": {"text": "paid ***"}})
    rooms = rooms_with(at("afterCall", ask))
    items = await rooms.ask()
    assert ask.questions[0]["result"]["text"] == "paid 500"
    (result,) = of(items, "tool_result")
    assert (result.content, result.metadata["hook"]) == ("paid ***", "hook0")
    assert "paid 500" not in str(rooms.model.requests)


@pytest.mark.parametrize(
    "reply",
    [
        RuntimeError("x"),
        {"result": "text"},
        {"end": True},
        {"result": {"text": "x", "value": object()}},
        {"result": {"text": "x", "value": DEEP}},
    ],
)
@virtually
async def test_a_hook_after_a_call_that_fails_ends_the_run_by_its_name(reply):
    rooms = rooms_with(at("afterCall", Asked(reply)))
    end = (await rooms.ask())[-1]
    assert (end.event_type, end.metadata["code"]) == ("failed", "hook_failed")
    assert "hook0" in end.content
    assert "paid 500" not in str(rooms.model.requests), "it may be what the hook is to hide"


@pytest.mark.parametrize("is_cancelled", [False, True])
@virtually
async def test_what_a_child_has_used_counts_though_the_run_ends_at_the_hook_after_it(is_cancelled):
    async def work(request, progress):
        progress(ChildRun("http://worker", "task-1", "completed", used=Used(10)))
        return "done"

    ask = Asked(seconds=20) if is_cancelled else Asked(RuntimeError("x"))
    rooms = rooms_with(
        at("afterCall", ask, timeout=30),
        '{"agent": "worker", "task": "work"}',
        agents={"worker": work},
        settings=RunSettings(budget=Budget(tokens=5_000)),
    )
    entry = await rooms.runs.start(RunRequest((Message("user", "hi"),)))
    await asyncio.sleep(1)
    await rooms.runs.cancel(entry.run_id)
    items = await rooms.told(entry.run_id)
    assert items[-1].event_type == ("aborted" if is_cancelled else "failed")
    (end,) = of(items, "delegation_error")
    assert end.metadata["child"]["task_id"] == "task-1"
    assert recorded_use(await rooms.runs.records(entry.run_id)).tokens < 1_000


@virtually
async def test_a_step_can_end_phase_1():
    ask = Asked({"end": True})
    rooms = rooms_with(at("afterStep", ask), CALL, "Paid.", "unused")
    items = await rooms.ask()
    (question,) = ask.questions
    assert question["calls"][0]["result"]["text"] == "paid 500"
    assert of(items, "agent_response")[0].content == "Paid."
    assert of(items, "step_judged")[0].metadata == {"step": 1, "hook": "hook0"}


@virtually
async def test_a_step_that_no_hook_ends_is_followed_by_the_next_and_one_that_fails_by_the_end():
    rooms = rooms_with(at("afterStep", Asked()))
    assert (await rooms.ask())[-1].event_type == "completed"
    for end in ("yes", 1, 0, 1.0):
        rooms = rooms_with(at("afterStep", Asked({"end": end})))
        assert (await rooms.ask())[-1].metadata["code"] == "hook_failed"


@virtually
async def test_an_answer_that_a_hook_refuses_is_given_back_and_never_told():
    ask = Asked({"problem": "say please"})
    rooms = rooms_with(at("validateAnswer", ask), "{}", "No.", "No, please.")
    items = await rooms.ask()
    assert [q["answer"] for q in ask.questions] == ["No.", "No, please."]
    assert "".join(item.content for item in of(items, "text")) == "No, please."
    assert "say please" in rooms.model.requests[2][-1].content
    assert "JSON" not in rooms.model.requests[2][-1].content


@virtually
async def test_in_direct_mode_a_hook_still_sees_the_answer_before_anybody():
    ask = Asked()
    settings = RunSettings(answer_mode="direct")
    rooms = rooms_with(at("validateAnswer", ask), "I know.", "Yes.", settings=settings)
    items = await rooms.ask()
    assert [q["answer"] for q in ask.questions] == ["Yes."]
    assert of(items, "agent_response")[0].content == "Yes."


@virtually
async def test_context_is_for_one_request_and_never_recorded():
    async def now(about):
        return [f"It is {len(about['question'])} pm."]

    hooks = Hooks(providers=(ContextProvider("now", now, 2.0),))
    rooms = rooms_with(hooks)
    items = await rooms.ask()
    assert all("2 pm" in sent[-1].content for sent in rooms.model.requests)
    assert all(str(sent).count("pm") == 1 for sent in rooms.model.requests)
    assert "pm" not in str(items)
    assert "pm" not in str(await rooms.store.conversation(items[0].session_id))


@pytest.mark.parametrize("given", [[1], ["x" * 70_000], RuntimeError("x")])
@virtually
async def test_a_provider_that_fails_ends_the_run_by_its_name(given):
    async def now(_):
        if isinstance(given, Exception):
            raise given
        return given

    rooms = rooms_with(Hooks(providers=(ContextProvider("now", now, 2.0),)))
    end = (await rooms.ask())[-1]
    assert (end.metadata["code"], "the hook now" in end.content) == ("hook_failed", True)


@pytest.mark.parametrize("point", ["afterCall", "afterStep"])
@virtually
async def test_who_may_have_lost_a_run_asks_no_hook_about_it(point):
    async def look(request, progress):
        await asyncio.sleep(20)
        return "seen"

    store, is_cut_off = SharedStore(), []
    asks = {name: Asked() for name in "ab"}
    a, b = (
        replica(
            *(store, name, '{"agent": "peer", "task": "look"}', "{}", "Seen."),
            agents={"peer": look},
            hooks=at(point, asks[name]),
        )
        for name in "ab"
    )
    a.trouble = lambda _: LOST if is_cut_off else None
    run_id = await begin(a)
    await asyncio.sleep(1)
    is_cut_off.append(True)
    await told(b, run_id)
    await asyncio.sleep(60)
    assert (len(asks["a"].questions), len(asks["b"].questions)) == (0, 1)


@pytest.mark.parametrize("dies_at", ["call_judged", "tool_result", "step_judged", "answer_judged"])
@virtually
async def test_a_new_owner_asks_nothing_again_that_is_on_record(dies_at):
    store = SharedStore()
    asks = {
        point: Asked(*replies)
        for point, *replies in (
            ("beforeCall", {"arguments": {"amount": 5}}),
            ("afterCall", {"result": {"text": "***"}}),
            ("afterStep", None),
            ("validateAnswer", {"problem": "say please"}),
        )
    }
    hooks = Hooks(tuple(Hook(point, point, ask, 2.0) for point, ask in asks.items()))
    tools = FunctionTools({"pay": pay}, (tool("pay", schema=SCHEMA, idempotent=True),))

    def trouble(call):
        if call.name == "append" and call.is_done and dies_at in call.about:
            a.kill()

    about = {"hooks": hooks, "tools": tools}
    a = replica(store, "a", *ANSWERS, "Paid, please.", trouble=trouble, **about)
    b = replica(store, "b", *ANSWERS, "Paid, please.", **about)
    run_id = await begin(a)
    await told(b, run_id)
    records = log(store, run_id)
    assert records[-1].event_type == "completed"
    assert {arguments["amount"] for _, arguments in tools.called} == {5}
    counts = {point: len(ask.questions) for point, ask in asks.items()}
    judged = {
        "beforeCall": "call_judged",
        "afterCall": "tool_result",
        "afterStep": "step_judged",
        "validateAnswer": "answer_judged",
    }
    for point, event_type in judged.items():
        on_record = sum(record.event_type == event_type for record in records)
        lost = (point, dies_at) in {("afterCall", "call_judged"), ("afterStep", "tool_result")}
        assert on_record <= counts[point] <= on_record + lost, (point, counts)
    assert "***" in str([r.content for r in records if r.event_type == "tool_result"])


@virtually
async def test_an_observer_is_told_of_each_question_with_its_outcome_and_time():
    seen = []
    asks = Asked(None, {"deny": "no"}, {"arguments": {"amount": "much"}}, seconds=0.5)
    hooks = replace(at("beforeCall", asks), observe=lambda *each: seen.append(each))
    catalog = Catalog(tools=(tool("pay", schema=SCHEMA),))
    for _ in range(3):
        await hooks.before_call({}, ToolCall("call_1_1", "pay", {"amount": 1}), catalog)
    hanging = asyncio.create_task(hooks.before_call({}, ToolCall("c", "pay", {}), catalog))
    await asyncio.sleep(0.25)
    hanging.cancel()
    await asyncio.wait([hanging])
    outcomes = [("passed", 0.5), ("acted", 0.5), ("failed", 0.5), ("cancelled", 0.25)]
    assert seen == [("beforeCall", "hook0", *each) for each in outcomes]
