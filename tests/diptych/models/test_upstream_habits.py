"""The model client against the habits of model servers: the answer that was meant, or an error.

Each habit of the tables is served on a socket whose end is the only end of the body. What a habit
answers is also cut at every event: no cut answer may look whole.
"""

import json
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from support.upstream_answers import ANSWERS
from support.upstream_calls import CALLS
from support.upstream_errors import ERRORS
from support.upstream_habits import (
    PLAIN,
    WITH_TOOLS,
    Habit,
    Meant,
    Refusal,
    as_bytes,
    call,
    chunk,
    error,
    hello,
    refusal,
    said,
    sse,
    whole,
)
from support.upstream_limits import LIMITS
from support.upstream_refusals import FORMATS, ONE_TOOL, PARAMETERS, SYSTEM_ROLE, TOOLS, OneTool
from support.upstream_server import SSE_TYPE, Answer, Respond, upstream_server

from diptych.core.errors import ModelError
from diptych.core.messages import Usage
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.models import chat_model
from diptych.models.chat_model import ChatModel
from diptych.ports import Delta

HABITS = [*ANSWERS, *CALLS, *ERRORS, *LIMITS, *TOOLS, *(one.habit for one in ONE_TOOL)]
REFUSALS = [*PARAMETERS, *SYSTEM_ROLE, *FORMATS]
SHORT = TimeoutConfig(connect=0.5, first_byte=0.15, idle=0.15, total=2)


async def no_pause(seconds: float) -> None:
    pass


def model(session: aiohttp.ClientSession, url: str, **settings: Any) -> ChatModel:
    config = ModelConfig("m", url, **settings)
    return ChatModel(session, config, sleep=no_pause, random=lambda: 0)


async def read(asked: ChatModel, request: ModelRequest, *, streamed: bool) -> Meant:
    """Ask in one way or the other, and give what came."""
    if not streamed:
        reply = await asked.complete(request)
        used = (reply.usage.prompt_tokens, reply.usage.completion_tokens)
        return Meant(reply.text, reply.reasoning, reply.calls, reply.finish_reason, used)
    deltas = [delta async for delta in asked.stream(request)]
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    return together(deltas)


def together(deltas: list[Delta]) -> Meant:
    last = deltas[-1]
    usage = last.usage or Usage()
    return Meant(
        "".join(delta.text for delta in deltas),
        "".join(delta.reasoning for delta in deltas),
        last.calls,
        last.finish_reason or "",
        (usage.prompt_tokens, usage.completion_tokens),
    )


def always(answer: Answer) -> Respond:
    return lambda body: answer


def test_there_are_more_than_a_hundred_habits_and_each_has_its_name() -> None:
    habits = {(type(habit), habit.name, habit.seen) for habit in (*HABITS, *REFUSALS)}
    assert len(habits) == len(HABITS) + len(REFUSALS) >= 200


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
async def test_what_was_meant_comes_out_or_an_error(
    session: aiohttp.ClientSession, habit: Habit
) -> None:
    for answer, streamed in ((habit.whole, False), (habit.streamed, True)):
        if answer:
            await check(session, habit, answer, streamed=streamed)


async def check(
    session: aiohttp.ClientSession, habit: Habit, answer: Answer, *, streamed: bool
) -> None:
    async with upstream_server(always(answer)) as there:
        timeouts = SHORT if answer.end == "hang" else TimeoutConfig()
        asked = model(session, there.url, timeouts=timeouts)
        if isinstance(habit.expected, Meant):
            came = await read(asked, habit.request, streamed=streamed)
            expected = habit.expected
            if expected.usage is None:
                came = replace(came, usage=None)
            assert came == expected
        else:
            with pytest.raises(ModelError) as caught:
                await read(asked, habit.request, streamed=streamed)
            assert caught.value.code == habit.expected
            assert caught.value.max_tokens == habit.max_tokens
            assert caught.value.prompt_tokens == habit.prompt_tokens
        if habit.tries is not None:
            assert len(there.requests) == habit.tries


@pytest.mark.parametrize("refused", ONE_TOOL, ids=lambda one: one.habit.seen)
async def test_a_tool_that_is_refused_is_named_with_what_to_do(
    session: aiohttp.ClientSession, refused: OneTool
) -> None:
    assert refused.habit.whole
    async with upstream_server(always(refused.habit.whole)) as there:
        asked = model(session, there.url)
        with pytest.raises(ModelError) as caught:
            await asked.complete(refused.habit.request)
    said = caught.value.message
    assert (f"the tool {refused.name!r}" if refused.name else "one of the tools") in said
    assert "tools[].allow" in said
    assert "actionFormat to json" in said
    assert (asked.takes_tools, asked.refused_tool) == (False, refused.name)
    assert len(there.requests) == 1


def cuts(habit: Habit) -> list[Answer]:
    """Cut a stream after each event before its end: closed and reset in turn."""
    assert habit.streamed
    pieces = habit.streamed.pieces
    sent = [b"".join(pieces[:n]) for n in range(len(pieces))]
    unfinished = [n for n, text in enumerate(sent) if not is_finished(text)]
    return [
        replace(habit.streamed, pieces=pieces[:n], end="reset" if n % 2 else "close")
        for n in unfinished
    ]


def is_finished(text: bytes) -> bool:
    ends = (b"[DONE]", b'"stop"', b'"length"', b'"tool_calls"}', b'"content_filter"')
    return any(end in text for end in ends) or (
        b'"finish_reason":"' in text.replace(b'"finish_reason":""', b"")
    )


STREAMED = [
    habit
    for habit in (*ANSWERS, *CALLS)
    if habit.streamed and habit.streamed.content_type == "text/event-stream"
]


@pytest.mark.parametrize("habit", STREAMED, ids=lambda habit: habit.name)
async def test_no_cut_answer_looks_whole(session: aiohttp.ClientSession, habit: Habit) -> None:
    for cut in cuts(habit):
        async with upstream_server(always(cut)) as there:
            with pytest.raises(ModelError) as caught:
                await read(model(session, there.url), habit.request, streamed=True)
        assert caught.value.code in {"model_cut", "model_unreachable"}, cut


@pytest.mark.parametrize("habit", REFUSALS, ids=lambda habit: habit.name)
async def test_what_is_refused_is_left_out_and_that_is_remembered(
    session: aiohttp.ClientSession, habit: Refusal
) -> None:
    def respond(body: Any) -> Answer:
        if habit.refuses(body):
            return Answer((as_bytes(habit.body),), habit.status)
        return hello(body)

    async with upstream_server(respond) as there:
        for streamed in (False, True):
            asked = model(session, there.url, **habit.settings)
            there.requests.clear()
            first = await read(asked, habit.request, streamed=streamed)
            tries = len(there.requests)
            again = await read(asked, habit.request, streamed=streamed)
            assert first.text == again.text == "Hello."
            assert not habit.refuses(there.requests[tries - 1])
            is_of_one_request = "too many" in habit.name or "a schema" in habit.name
            assert len(there.requests) == tries + (2 if is_of_one_request and tries > 1 else 1)
            if habit in SYSTEM_ROLE:
                assert there.requests[-1]["messages"] == [
                    {"role": "user", "content": "Be brief.\n\nHello"}
                ]


# Whole replies are streamed inside: what that shows, what it loses, and what is left early.

TOKENS = {"prompt_tokens": 3, "completion_tokens": 2}
CALL = {"index": 0, "id": "call_1", "type": "function"} | {
    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
}
ASKING = {"content": None, "tool_calls": [CALL]}


LOST_CALLS = sse(chunk({}, "tool_calls"), {"choices": [], "usage": TOKENS}, None)


@pytest.mark.parametrize(
    ("streamed", "used"),
    [
        (refusal(error("Cannot use tools with stream"), 500), Usage(3, 2)),  # llama.cpp
        (LOST_CALLS, Usage(6, 4)),  # both requests count
    ],
    ids=["llama.cpp", "the calls are lost in silence"],
)
async def test_an_endpoint_that_cannot_stream_tools_is_asked_for_whole_replies(
    session: aiohttp.ClientSession, streamed: Answer, used: Usage
) -> None:
    def respond(body: Any) -> Answer:
        if not body["stream"]:
            return whole(ASKING, "tool_calls", usage=TOKENS)
        return streamed if "tools" in body else said("Hello.")

    async with upstream_server(respond) as there:
        asked = model(session, there.url)
        replies = [await asked.complete(WITH_TOOLS) for _ in range(2)]
        assert [reply.calls for reply in replies] == [(call(),), (call(),)]
        assert [reply.usage for reply in replies] == [used, Usage(3, 2)]
        assert [request["stream"] for request in there.requests] == [True, False, False]
        assert (await asked.complete(PLAIN)).text == "Hello."
        assert there.requests[-1]["stream"] is True


@pytest.mark.parametrize(
    ("whole_usage", "streams"),
    [(TOKENS, [True, False, False]), (None, [True, False, True])],
    ids=["whole replies have it", "nor have whole replies"],
)
async def test_an_endpoint_that_streams_no_usage_is_asked_for_whole_replies_that_have_it(
    session: aiohttp.ClientSession, whole_usage: Any, streams: list[bool]
) -> None:
    def respond(body: Any) -> Answer:
        if body["stream"] and "stream_options" in body:
            return refusal(error("Unknown parameter: 'stream_options'"))
        return said("Hi") if body["stream"] else whole({"content": "Hi"}, usage=whole_usage)

    async with upstream_server(respond) as there:
        asked = model(session, there.url)
        assert [(await asked.complete(PLAIN)).text for _ in range(3)] == ["Hi"] * 3
        assert [request["stream"] for request in there.requests[1:]] == streams
        async for _ in asked.stream(PLAIN):
            pass
        assert there.requests[-1]["stream"] is True


async def test_an_endpoint_whose_whole_replies_take_too_long_is_streamed_again(
    session: aiohttp.ClientSession,
) -> None:
    def respond(body: Any) -> Answer:
        return said("Hi") if body["stream"] else Answer((), 200, end="hang")

    async with upstream_server(respond) as there:
        asked = model(session, there.url, timeouts=TimeoutConfig(first_byte=0.3, idle=1))
        assert (await asked.complete(PLAIN)).text == "Hi"
        with pytest.raises(ModelError, match="firstByte"):
            await asked.complete(PLAIN)
        assert (await asked.complete(PLAIN)).text == "Hi"
        assert [request["stream"] for request in there.requests] == [True, False, True]


ROUND = "I should look at the weather first, and then say what it is. "
SAME = json.dumps({"tool": "get_weather", "arguments": {"city": "Oslo"}}) + "\n"


@pytest.mark.parametrize(
    ("delta", "most"),
    [
        pytest.param({"content": ROUND}, 40, id="text"),
        pytest.param({"content": SAME}, 150, id="the same call"),
        pytest.param(
            {"tool_calls": [{"index": 0, "function": {"arguments": ROUND}}]}, 120, id="arguments"
        ),
    ],
)
async def test_a_reply_that_repeats_itself_is_left_while_it_streams(
    session: aiohttp.ClientSession, delta: Any, most: int
) -> None:
    first = {"tool_calls": [CALL | {"function": {"name": "get_weather", "arguments": '{"a":"'}}]}
    deltas = [first if "tool_calls" in delta else {"content": "Well. "}, *[delta] * most]
    pieces = said(*deltas).pieces[: len(deltas)]
    async with upstream_server(lambda body: Answer(pieces, 200, SSE_TYPE, end="hang")) as there:
        patient = TimeoutConfig(first_byte=5, idle=5, total=10)
        reply = await model(session, there.url, timeouts=patient).complete(WITH_TOOLS)
        assert len(there.requests) == 1
    assert reply.finish_reason == "length"
    assert not reply.usage.is_known


async def test_a_call_that_is_repeated_some_times_is_read_to_its_end(
    session: aiohttp.ClientSession,
) -> None:
    async with upstream_server(lambda body: replace(said(*[SAME] * 30), pause=0.01)) as there:
        reply = await model(session, there.url).complete(PLAIN)
    assert (reply.text, reply.finish_reason) == (SAME * 30, "stop")


async def test_waits_and_retries_are_reported(
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(chat_model, "FIRST_WAIT", 0.05)
    busy = refusal(error("slow down"), 429)
    answers = iter([busy, Answer((), end="hang")])
    waits: list[Any] = []
    request = ModelRequest(PLAIN.messages, on_wait=waits.append)
    async with (
        upstream_server(lambda body: next(answers)) as there,
        upstream_server(lambda body: said("Hello.")) as other,
    ):
        timeouts = TimeoutConfig(first_byte=0.3)
        second = ModelConfig("second", other.url)
        asked = model(session, there.url, timeouts=timeouts, fallbacks=(second,))
        assert (await asked.complete(request)).text == "Hello."
        place = f"m at {there.url.removesuffix('/v1')}"
    retry, *first_byte, fallback = waits
    assert retry["kind"] == "retry"
    assert "HTTP 429): slow down" in retry["message"]
    assert [wait["kind"] for wait in first_byte] == ["first_byte"] * 3
    assert first_byte[1]["message"] == (
        f"{place} has not started its reply after 0.1 s; the limit is 0.3 s "
        "(spec.model.timeouts.firstByte)"
    )
    assert fallback["kind"] == "fallback"
    assert all(wait["message"] in caplog.text for wait in waits)
