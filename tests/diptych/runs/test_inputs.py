"""Questions of tools: who waits, who answers, and what becomes of them when processes die."""

import asyncio

import pytest
from support.doubles import FunctionTools, facts, house, tool
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import begin, log, now, virtually

from diptych.core.errors import AlreadyAnswered, InputNotFound, InvalidRequest, RunEnded
from diptych.core.events import InputRequest
from diptych.core.prompt import OUTCOME_UNKNOWN
from diptych.core.run_settings import RunSettings
from diptych.net.redaction import SECRETS
from diptych.runs.definition import AgentDefinition
from diptych.runs.inputs import InputReply

BOOK = '{"tool": "book"}'
CALL = "call_1_1"
NAME = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
WHO = InputRequest("form", "Who travels?", NAME)


class Desk:
    """A tool `book` that asks who travels, and can go on with the answer elsewhere."""

    def __init__(self, request=WHO, state=None, times=1, **marks):
        self.request, self.state, self.times = request, state, times
        self.contexts, self.answers = [], []
        tools = (tool("book", **marks),)
        self.tools = FunctionTools({"book": self.book}, tools, asking=["book"])

    async def book(self, context):
        self.contexts.append(context)
        if context.resumed:
            assert context.resumed.state == self.state
            answers = [context.resumed.answer]
        else:
            answers = [await context.ask(self.request, self.state) for _ in range(self.times)]
        self.answers += answers
        return ", ".join(f"{a.action} {(a.content or {}).get('name', '')}".strip() for a in answers)


def home(*replies, desk, deadline=None, **rest):
    definition = AgentDefinition("", RunSettings(), deadline)
    return house(*replies, definition=definition, tools=desk.tools, **rest)


async def asked(place, after=0):
    """Wait until a call asks, and give its run's id."""
    while True:
        for entry in await place.runs.waiting_runs(10):
            if entry.seq > after:
                return entry.run_id
        await asyncio.sleep(0.01)


async def begun(desk, *replies, **rest):
    place = home(*replies, desk=desk, **rest)
    asking = asyncio.create_task(place.ask())
    return place, asking, await asked(place)


def accept(name="Ada"):
    return InputReply("accept", {"name": name}, "user:eve")


async def results(place, run_id):
    return [e.result.text for e in await place.events(run_id) if hasattr(e, "result")]


@virtually
async def test_the_answer_reaches_the_call_and_nobody_else():
    desk = Desk(state={"secret": "state-of-it"})
    place, asking, run_id = await begun(desk, BOOK, "{}", "Booked.")
    assert (await place.store.entry(run_id)).status == "input-required"
    await place.runs.answer(run_id, CALL, accept("Ada-in-private"))
    items = await asking
    assert facts(items) == [
        *("user_message", "tool_call", "input_requested", "input_received"),
        *("tool_result", "agent_response"),
    ]
    assert await results(place, run_id) == ["accept Ada-in-private"]
    shown = repr([i for i in items if getattr(i, "event_type", "").startswith("input_")])
    shown += repr([r for r in await place.runs.records(run_id) if "input_" in r.event_type])
    assert "Who travels?" in shown
    assert "user:eve" in shown
    assert "Ada-in-private" not in shown
    assert "state-of-it" not in shown
    [context] = desk.contexts
    assert (context.run_id, context.call_id) == (run_id, CALL)


@virtually
async def test_the_first_answer_to_each_question_counts():
    place, asking, run_id = await begun(Desk(times=2), BOOK, "{}", "Booked.")
    both = [place.runs.answer(run_id, CALL, accept(name)) for name in ("Ada", "Bob")]
    _, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(second, AlreadyAnswered)
    seq = (await place.store.entry(run_id)).seq
    await asked(place, seq - 1)
    await place.runs.answer(run_id, CALL, accept("Eve"))
    with pytest.raises(AlreadyAnswered, match="accept by user:eve"):
        await place.runs.answer(run_id, CALL, accept())
    await asking
    assert await results(place, run_id) == ["accept Ada, accept Eve"]
    with pytest.raises(InputNotFound):
        await place.runs.answer(run_id, "call_1_2", accept())


@virtually
async def test_a_question_that_nobody_answers_is_cancelled_and_costs_no_time_of_the_run():
    place, asking, run_id = await begun(Desk(), BOOK, "{}", "Hm.", deadline=30.0)
    begun_at = now()
    assert facts(await asking)[-1] == "agent_response"
    assert now() - begun_at == pytest.approx(600, abs=1)
    assert await results(place, run_id) == ["cancel"]
    with pytest.raises(AlreadyAnswered, match=r"cancel by nobody \(it expired\)"):
        await place.runs.answer(run_id, CALL, accept())


@virtually
async def test_a_run_that_ends_takes_its_question_along():
    place, asking, run_id = await begun(Desk(), BOOK)
    await place.runs.cancel(run_id)
    await asking
    assert place.tools.cancelled == ["book"]
    assert await place.runs.waiting_runs(10) == []
    with pytest.raises(RunEnded):
        await place.runs.answer(run_id, CALL, accept())


@virtually
async def test_a_tool_that_gives_up_its_question_may_ask_another():
    desk = Desk()

    async def book(context):
        try:
            async with asyncio.timeout(5):
                await context.ask(WHO)
        except TimeoutError:
            await asyncio.sleep(1)
        return (await context.ask(WHO)).action

    desk.tools.functions["book"] = book
    place, asking, run_id = await begun(desk, BOOK, "{}", "Hm.")
    await asyncio.sleep(10)
    await place.runs.answer(run_id, CALL, InputReply("decline"))
    await asking
    assert [name for name, _ in place.tools.called] == ["book"]
    assert await results(place, run_id) == ["decline"]


@virtually
async def test_a_tool_that_gives_up_as_its_question_is_withdrawn_is_not_called_again():
    desk = Desk()

    async def book(context):
        async with asyncio.timeout(5):
            await context.ask(WHO)

    desk.tools.functions["book"] = book
    place = home(BOOK, "{}", "Hm.", desk=desk)
    await place.ask()
    assert [name for name, _ in place.tools.called] == ["book"]


@pytest.mark.parametrize(
    ("reply", "path"),
    [
        (InputReply("accept"), "content"),
        (InputReply("decline", {"name": "Ada"}), "content"),
        (InputReply("accept", {}), "content"),
        (InputReply("accept", {"name": 5}), "content.name"),
        (InputReply("accept", {"name": "Ada", "more": {"deep": 1}}), "content.more"),
        (InputReply("accept", {"name": "Ada", "more": [1]}), "content.more"),
        (InputReply("accept", {"name": "x" * 70_000}), "content"),
    ],
)
@virtually
async def test_an_answer_that_does_not_fit_is_refused_with_its_path(reply, path):
    place, asking, run_id = await begun(Desk(), BOOK, "{}", "Hm.")
    with pytest.raises(InvalidRequest) as caught:
        await place.runs.answer(run_id, CALL, reply)
    assert caught.value.param == path
    await place.runs.answer(run_id, CALL, InputReply("cancel"))
    await asking


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (InputRequest("form", "?", {"type": 5}), "its schema is not a valid JSON schema"),
        (InputRequest("form", "?", {"title": "x" * 40_000}), "its schema is longer than 32 KiB"),
        (InputRequest("url", "?", url="http://" + "x" * 5_000), "its URL is too long"),
    ],
)
@virtually
async def test_a_question_that_nobody_can_answer_fails_the_call(request_, problem):
    place = home(BOOK, "{}", "Hm.", desk=Desk(request_))
    run_id = (await place.ask())[-1].run_id
    [text] = await results(place, run_id)
    assert problem in text


@virtually
async def test_a_question_is_bounded_and_tells_no_secret():
    SECRETS.remember("hush-hush-hush")
    schema = {**NAME, "description": "Not hush-hush-hush."}
    url = "https://pay.example/?key=hush-hush-hush"
    request = InputRequest("form", "Is hush-hush-hush right? " + "x" * 5_000, schema, url)
    place, asking, run_id = await begun(Desk(request), BOOK, "{}", "Hm.")
    [asked] = [r for r in await place.runs.records(run_id) if r.event_type == "input_requested"]
    assert "hush" not in str(asked)
    assert len(str(asked.content)) == 4_096
    asking.cancel()


# Other processes


def pair(desk, store=None, *replies):
    store = store or SharedStore()
    replies = replies or (BOOK, "{}", "Booked.")
    return [store, *(replica(store, n, *replies, tools=desk.tools) for n in "ab")]


@virtually
async def test_a_question_is_answered_at_another_process():
    desk = Desk()
    _, a, b = pair(desk)
    run_id = await begin(a)
    await asyncio.sleep(1)
    await b.run(b.runs.answer(run_id, CALL, accept()))
    await told(b, run_id)
    assert [answer.content for answer in desk.answers] == [{"name": "Ada"}]


@pytest.mark.parametrize("early", [False, True], ids=["after the takeover", "before it"])
@virtually
async def test_a_question_with_a_state_survives_its_process(early):
    desk = Desk(state=["round", 2])
    store, a, b = pair(desk)
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    await asyncio.sleep(0 if early else 60)
    if early:  # the process that is asked finds no owner
        assert "owner_changed" not in [r.event_type for r in log(store, run_id)]
    answering = b.run(b.runs.answer(run_id, CALL, accept()))
    await asyncio.gather(answering, return_exceptions=True)
    await told(b, run_id)
    assert [c.resumed is None for c in desk.contexts] == [True, False]
    assert [answer.content for answer in desk.answers] == [{"name": "Ada"}]
    assert [r.content for r in log(store, run_id) if r.event_type == "tool_result"] == [
        "accept Ada"
    ]


@pytest.mark.parametrize("read_only", [False, True])
@virtually
async def test_a_question_that_a_connection_held_ends_with_its_process(read_only):
    desk = Desk(read_only=read_only)
    store, a, b = pair(desk)
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    if read_only:  # the tool is called again, and asks again
        await asyncio.sleep(60)
        await b.run(b.runs.answer(run_id, CALL, accept()))
    await told(b, run_id)
    results = [r.content for r in log(store, run_id) if r.event_type.startswith("tool_")][1:]
    assert results == (["accept Ada"] if read_only else [OUTCOME_UNKNOWN])
