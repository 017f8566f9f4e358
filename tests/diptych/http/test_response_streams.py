"""Streams of responses that go on at another replica, start over, or lose what they told."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.face import Face, Speaker, face, replicas
from support.redis_server import RedisServer, redis_server
from support.stack import Frame, frames

from diptych.core.codec import Record
from diptych.http.caller_calls import Part
from diptych.http.responses.state import ResponseState, fed
from diptych.ports import Notice
from diptych.ports.entries import RunEntry
from diptych.runs import lease_keeper

PATH = "/v1/responses"
STREAM = {"input": "hi", "stream": True}
DELTA = "response.output_text.delta"


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def quickly_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "TAKEOVER_SECONDS", 0.05)


async def replay(helper: Face, run_id: str, after: int | None = None) -> str:
    query = "" if after is None else f"&starting_after={after}"
    return (await helper.http.get(f"{PATH}/{run_id}?stream=true{query}")).text


def texts(told: Sequence[Frame]) -> dict[int, str]:
    """Give the text of each item, by its index, as its pieces say."""
    found: dict[int, str] = {}
    for each in told:
        if each.event == DELTA:
            index = each.json["output_index"]
            found[index] = found.get(index, "") + each.json["delta"]
    return found


async def test_a_stream_whose_process_leaves_is_taken_up_byte_for_byte_at_another(
    redis: RedisServer,
) -> None:
    first, second = Speaker("one ", "two ", ...), Speaker("one ", "two ", "three")
    async with replicas(first, second, redis_url=redis.url) as (leaving, staying):
        asking = asyncio.create_task(leaving.http.post(PATH, json=STREAM))
        await first.has_stopped.wait()
        (entry,) = await staying.house.runs.entries()
        elsewhere = asyncio.create_task(replay(staying, entry.run_id))
        await asyncio.sleep(0.1)
        await leaving.house.runs.close()
        text = (await asking).text
        *heard, error = frames(text)
        assert (error.event, error.json["code"]) == ("error", "handed_over")
        assert error.json["error"]["code"] == "handed_over"
        assert error.json["sequence_number"] == heard[-1].json["sequence_number"]
        rest = await replay(staying, entry.run_id, heard[-1].json["sequence_number"])
        whole = await replay(staying, entry.run_id)
        assert text[: text.index("event: error")] + rest == whole == await elsewhere
        assert texts(frames(whole)) == {0: "one two three"}


async def test_an_answer_that_starts_over_is_a_new_item_and_the_old_one_is_not_in_the_output() -> (
    None
):
    first, second = Speaker("one ", "two ", ...), Speaker("eins ", "zwei")
    async with replicas(first, second) as (leaving, staying):
        asking = asyncio.create_task(leaving.http.post(PATH, json=STREAM))
        await first.has_stopped.wait()
        (entry,) = await staying.house.runs.entries()
        there = asyncio.create_task(replay(staying, entry.run_id))
        await asyncio.sleep(0.02)
        await leaving.house.runs.close()
        heard = frames((await asking).text)[:-1]
        whole = await there
        assert whole == await replay(staying, entry.run_id)
        assert frames(whole)[: len(heard)] == heard
        told = frames(whole)
        assert texts(told) == {0: "one two ", 1: "eins zwei"}
        (void, valid) = [f.json["item"] for f in told if f.event == "response.output_item.done"]
        assert (void["status"], valid["status"]) == ("incomplete", "completed")
        assert told[-1].json["response"]["output"] == [valid]


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_reader_of_what_the_store_then_lost_is_told_so(is_told: bool) -> None:
    model = Speaker("one ", "two ", ..., "three")
    async with face(model=model) as helper:
        asking = asyncio.create_task(helper.http.post(PATH, json=STREAM))
        await model.has_stopped.wait()
        (entry,) = await helper.house.runs.entries()
        live = helper.house.runs._scheduler.find(entry.run_id)
        assert live is not None
        seq = len(live.log.records) - (1 if is_told else 0)
        live.log.notify(Notice("reset", {"epoch": "x", "last_seq": seq}))
        model.go.set()
        told = frames((await asking).text)
        if is_told:
            assert told[-1].json["code"] == "answer_reset"
        else:
            assert texts(told) == {0: "one two three"}


# Whatever the record holds

_TEXT = st.text(max_size=3)
_TURN = st.lists(st.lists(_TEXT.filter(bool), max_size=3), min_size=1, max_size=3)
_ENDS = st.sampled_from(["completed", "failed", "aborted", "max_steps", None])


def records_of(turns: Sequence[Sequence[Sequence[str]]], end: str | None, tools: int) -> Any:
    """Give a record: each turn has attempts, of which all but the last one became void."""
    names = ["a", "b"][:tools]
    facts: list[tuple[str, Any, dict[str, Any]]] = [
        ("user_message", "hi", {"notes": {"tools": names}} if names else {}),
        ("offered", "key", {}),
    ]
    for turn in turns:
        for attempt, pieces in enumerate(turn):
            if attempt:
                facts.append(("answer_reset", None, {"from_seq": 3, "attempt": attempt + 1}))
            facts += [("text", piece, {}) for piece in pieces]
        answer = "".join(turn[-1])
        if tools == 2:
            answer = '{"form": "a", "value": {}}'
        facts.append(("agent_response", answer, {"finish_reason": "stop"}))
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    ends = {
        "completed": (None, {"finish_reason": "stop", **usage}),
        "failed": ("it broke", {"code": "stuck"}),
        "aborted": ("by request", {}),
        "max_steps": ("Reached", {"results": [], **usage}),
    }
    if end:
        facts.append((end, *ends[end]))
    return [
        Record("run-1", "s", n, kind, 1.0, content, metadata)
        for n, (kind, content, metadata) in enumerate(facts, 1)
    ]


def test_a_response_with_text_before_its_calls_is_the_same_whole_and_streamed() -> None:
    records = records_of([[["one"]]], None, 0)
    call = {"tool": "caller__weather", "arguments": {}}
    waiting = [("tool_call", call, {}), ("input_requested", "weather", {"kind": "caller_tool"})]
    records += [
        Record("run-1", "s", 5 + n, kind, 1.0, content, {**about, "call_id": "call_2_1"})
        for n, (kind, content, about) in enumerate(waiting)
    ]
    entry, part = RunEntry("run-1", "s", 1.0, "queued"), Part()
    streamed = fed(ResponseState("helper", entry, Part()), records).response()
    for record in records:
        part.feed(record)
    whole = fed(ResponseState("helper", entry, part), records).response()
    assert [item["type"] for item in streamed["output"]] == ["message", "function_call"]
    assert whole == streamed


@settings(max_examples=30)
@given(st.lists(_TURN, max_size=3), _ENDS, st.integers(0, 2))
def test_events_are_numbered_without_a_gap_and_each_item_is_told_whole(
    turns: Any, end: str | None, tools: int
) -> None:
    state = ResponseState("helper", RunEntry("run-1", "s", 1.0, "queued"), Part())
    events = [event for record in records_of(turns, end, tools) for event in state.feed(record)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    open_items: dict[int, Any] = {}
    done: list[Any] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(open_items)
                open_items[event["output_index"]] = [event["item"]["id"], ""]
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                assert open_items[event["output_index"]][0] == event["item_id"]
                open_items[event["output_index"]][1] += event["delta"]
            case "response.output_text.done":
                assert event["text"] == open_items[event["output_index"]][1]
            case "response.function_call_arguments.done":
                assert event["arguments"] == open_items[event["output_index"]][1]
            case "response.output_item.done":
                assert event["item"]["id"] == open_items[event["output_index"]][0]
                done.append(event["item"])
    assert len(done) == len(open_items)
    output = state.response()["output"]
    assert [item for item in done if item in output] == output
    assert len(output) == len(turns) + (end == "max_steps")
    if end:
        assert events[-1]["response"] == state.response()
