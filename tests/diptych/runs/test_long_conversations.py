"""Conversations that are longer than the model's context window (loop.md §11)."""

import json
import re

import pytest
from support.doubles import FunctionTools, House, house, tool, types
from support.replicas import replica, when
from support.replicas import told as told_by
from support.shared_store import SharedStore
from support.virtual_time import run_virtually
from support.window_model import WindowModel, bytes_by_five, bytes_by_two, is_summary, words

from diptych.core.codec import Record
from diptych.core.messages import Message
from diptych.runs.definition import AgentDefinition
from diptych.runs.request import RunRequest


def records(told):
    return [item for item in told if isinstance(item, Record)]


PROSE = "The tea is in the left cup, and the right cup is empty. "


def long_text(kind: str, size: int) -> str:
    return (kind * (size // len(kind) + 1))[:size]


def agent(model: WindowModel, text: str, max_tokens: int | None) -> House:
    async def fetch(page: int) -> str:
        return f"page {page}: {text}"

    definition = AgentDefinition("Be brief.", context_max_tokens=max_tokens)
    return house(model=model, tools={"fetch": fetch}, definition=definition)


def unparted(messages: tuple[Message, ...]) -> bool:
    """Whether each reply with a call is followed by its result, and no result stands alone."""
    for n, message in enumerate(messages):
        is_call = message.role == "assistant" and message.content.startswith('{"tool"')
        follows = n + 1 < len(messages) and "[Step " in messages[n + 1].content
        if is_call != follows:
            return False
    return True


@pytest.mark.parametrize(
    ("count", "max_tokens"), [(words, 8_000), (bytes_by_two, None), (bytes_by_five, None)]
)
async def test_a_conversation_of_200_turns_with_2_mb_of_results_never_fails(count, max_tokens):
    model = WindowModel(8_000, count)
    home = agent(model, long_text(PROSE, 10_500), max_tokens)
    for turn in range(200):
        told = await home.ask(f"Fetch page {turn}.", "s-1")
        assert types(told)[-1] == "completed", records(told)[-1]
    assert model.refused <= (0 if max_tokens else 2)
    assert model.largest <= 8_000
    assert 5 < model.summaries < 80  # one for about three turns: phase 2 has the results once more
    for request in model.requests:
        if not is_summary(request):
            assert unparted(request)
            assert "Fetch page 0." in request[1].content  # the first message stays


async def test_a_huge_result_is_sent_as_an_excerpt_that_the_model_can_read_on():
    model = WindowModel(8_000)
    home = agent(model, long_text(PROSE, 900_000) + "THE END", 8_000)
    asked = await home.ask("Fetch it.", "s-1")
    last = model.requests[-1][-1].content
    assert len(last) < 10_000
    assert "THE END" in last
    found = re.search(
        r'{"tool": "result__read", "arguments": {"id": "(\w+)", "offset": (\d+)}}',
        model.requests[-2][-1].content,  # of phase 1
    )
    assert types(asked).count("tool_result") == 1
    text_id, offset = found[1], int(found[2])

    model.steps = 2
    calls = iter(
        [
            {"tool": "result__read", "arguments": {"id": text_id, "offset": offset, "limit": 100}},
            {"tool": "result__read", "arguments": {"id": "nothing"}},
        ]
    )
    model.arguments = lambda n: {}
    take = WindowModel.complete

    async def complete(request):
        reply = await take(model, request)
        return type(reply)(json.dumps(next(calls)), reply.usage) if "fetch" in reply.text else reply

    model.complete = complete
    told = await home.ask("Read on.", "s-1")
    assert types(told)[-1] == "completed"
    results = [r for r in records(told) if r.event_type in {"tool_result", "tool_error"}]
    assert results[0].content.startswith(f"page 1: {long_text(PROSE, 900_000)}"[offset:][:100])
    assert f"characters {offset} to {offset + 100} of" in results[0].content
    assert results[1].content == "there is no text with this id"
    assert [c for c in home.tools.called if c[0] != "fetch"] == []  # no server was asked


async def test_a_summary_is_asked_for_once_and_stands_in_later_runs():
    model = WindowModel(8_000)
    home = agent(model, long_text(PROSE, 9_000), 8_000)
    compacted = 0
    for turn in range(12):
        told = await home.ask(f"Fetch page {turn}.", "s-1")
        compacted += types(told).count("compacted")
    assert compacted == model.summaries > 0
    assert sum("The user asked for pages" in m.content for m in model.requests[-1]) == 1


async def test_a_summary_that_fails_does_not_end_the_run():
    model = WindowModel(8_000, summary=None)
    home = agent(model, long_text(PROSE, 9_000), 8_000)
    for turn in range(20):
        told = await home.ask(f"Fetch page {turn}.", "s-1")
        assert types(told)[-1] == "completed"
    assert model.summaries > 0
    errors = [r.metadata.get("error") for r in records(told) if r.event_type == "compacted"]
    assert set(errors) <= {"model_failed"}
    model.summary = "  "
    for turn in range(20):
        assert types(await home.ask(f"Fetch page {turn}.", "s-1"))[-1] == "completed"


async def test_a_message_that_alone_does_not_fit_fails_with_a_sentence_and_the_session_goes_on():
    model = WindowModel(2_000)
    home = agent(model, "short", None)
    told = await home.ask(long_text(PROSE, 40_000), "s-1")
    end = records(told)[-1]
    assert (end.event_type, end.metadata["code"]) == ("failed", "context_too_long")
    assert "Send a shorter message" in end.content
    assert types(await home.ask("And now?", "s-1"))[-1] == "completed"


async def test_a_tool_list_that_does_not_fit_is_shortened():
    names = [f"tool_{n}" for n in range(60)]
    properties = {"page": {"type": "integer", "description": long_text(PROSE, 300)}}
    tools = FunctionTools(
        {}, tools=tuple(tool(n, schema={"type": "object", "properties": properties}) for n in names)
    )
    model = WindowModel(4_096, steps=0)
    home = house(model=model, tools=tools, definition=AgentDefinition(context_max_tokens=4_096))
    assert types(await home.ask("hi"))[-1] == "completed"
    assert all(name in model.requests[0][0].content for name in names)
    learning = WindowModel(4_096, steps=0)
    home = house(model=learning, tools=tools)
    ends = [types(await home.ask("hi"))[-1] for _ in range(2)]
    assert ends == ["failed", "completed"]  # the first run learns it for the next


@pytest.mark.parametrize("dies_after", ["compacted", "context_refused"])
def test_another_process_goes_on_after_a_summary_and_asks_for_none_again(dies_after):
    async def story():
        store = SharedStore()
        model = WindowModel(1_000, steps=0)
        first = replica(
            store,
            "a",
            model=model,
            trouble=when("append", dies_after, act=lambda: first.kill()),  # noqa: PLW0108 - made below
        )
        second = replica(store, "b", model=model)
        roles = ["user", "assistant"] * 10
        said = [Message(role, long_text(PROSE, 300)) for role in roles]
        request = RunRequest((*said, Message("user", "So?")))
        run_id = (await first.run(first.runs.start(request))).run_id
        return model, [r.event_type for r in records(await told_by(second, run_id))]

    model, found = run_virtually(story())
    assert found[-1] == "completed"
    assert found.count("compacted") == 1
    assert model.summaries == 1 if dies_after == "compacted" else model.summaries >= 1
