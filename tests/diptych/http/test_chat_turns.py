"""A chat whose run was sent a message: what it tells of several answers, whatever becomes void."""

import asyncio

import pytest
from support.guarded import guarded
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stack import frames, text_of
from support.stories import begin, log, virtually

from diptych.core.events import MessageQueued
from diptych.http.chat import ChatReader
from diptych.http.completion_format import CompletionFormat
from diptych.http.errors import RunFailed
from diptych.ports import Notice


def event_types(store, run_id):
    return [r.event_type for r in log(store, run_id)]


def reader_of(pod, entry):
    return ChatReader(guarded(pod.runs), entry, CompletionFormat(entry, "x"))


async def reader(pod, run_id):
    return reader_of(pod, await pod.runs.entry(run_id))


@virtually
async def test_a_chat_that_is_told_again_parts_its_answers_also_after_an_answer_that_started_over():
    store = SharedStore()
    slowly = {"content": "One. One.", "chunk_ms": 1000}
    deux = {"content": "Deux deux deux deux", "chunk_ms": 1000}
    a = replica(store, "a", "{}", slowly, "{}", deux)
    b = replica(store, "b", "", "", "{}", "Two.")
    run_id = await begin(a)
    await asyncio.sleep(1.5)
    await a.run(a.runs.send_message(run_id, MessageQueued("more", "m-1")))
    await asyncio.sleep(4)
    a.kill()
    await told(b, run_id)
    assert "answer_reset" in event_types(store, run_id)
    completion = await (await reader(b, run_id)).completion()
    whole = completion["choices"][0]["message"]["content"]
    told_again = (await reader(b, run_id)).frames(include_usage=False)
    raw = b"".join([content async for content in told_again])
    assert whole == "One. One.\n\nTwo."
    assert text_of(frames(raw.decode())) == whole


@virtually
async def test_a_chat_that_is_not_streamed_leaves_out_an_answer_that_the_store_has_lost():
    store = SharedStore()
    slowly = {"content": "One. One.", "chunk_ms": 1000}
    a = replica(store, "a", "{}", slowly, {"content": "{}", "delay_ms": 60_000})
    b = replica(store, "b", "{}", "One.", "{}", "Two.")
    c = replica(store, "c", "{}", "One.", "{}", "Two.")  # reads, and never owns
    run_id = await begin(a)
    entry = await a.runs.entry(run_id)  # `c` cannot know it yet
    completion = reader_of(c, entry).completion()
    whole = asyncio.create_task(c.run(completion))
    await asyncio.sleep(1.5)
    await a.run(a.runs.send_message(run_id, MessageQueued("more", "m-1")))
    await asyncio.sleep(4)
    a.kill()
    rows = event_types(store, run_id)
    store.lose_tail(run_id, len(rows) - rows.index("agent_response"))
    await told(b, run_id)
    got = (await whole)["choices"][0]["message"]["content"]
    kept = [r.content for r in log(store, run_id) if r.event_type == "agent_response"]
    assert got == "\n\n".join(kept), (got, kept)


@virtually
async def test_a_chat_that_failed_before_anything_was_sent_of_it_is_an_http_error():
    """Also if something to tell arrives in the same batch."""
    store = SharedStore()
    a = replica(store, "a", "{}", *[{"error": "it broke off"}] * 4)
    run_id = await begin(a)
    await told(a, run_id)

    class Together:
        async def subscribe(self, run_id):
            return self.batches(run_id)

        async def batches(self, run_id):
            yield [Notice("reasoning", {"content": "Hm."}), log(store, run_id)[-1]]

    entry = await a.runs.entry(run_id)
    frames_ = ChatReader(Together(), entry, CompletionFormat(entry, "x")).frames(
        include_usage=False
    )
    with pytest.raises(RunFailed) as failed:
        await anext(frames_)
    assert failed.value.code == "model_failed"
