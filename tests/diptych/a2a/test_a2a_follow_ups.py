"""A2A messages with a `taskId`: they join the task that they name, at whatever replica it is.

Asked by the SDK's own client, at two replicas that share a store.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client.client import Client
from a2a.types import (
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from support.a2a_wires import USUAL, Wire, client_over, over_each_wire
from support.doubles import ListeningModel
from support.face import LOCAL, Face, Speaker, replicas
from support.stack import until

from diptych.ports import Model

SLOW = {"content": "{}", "delay_ms": 600}


@asynccontextmanager
async def agents(wire: Wire, *models: Model) -> AsyncIterator[tuple[list[Face], Any]]:
    """Make two replicas of an agent, and give them with what makes a client of one."""
    async with replicas(*models) as faces:

        async def client(at: Face, *, streaming: bool = False) -> Client:
            transport = httpx.ASGITransport(at.app)
            http = httpx.AsyncClient(transport=transport, base_url=LOCAL)
            return await client_over(wire, http, LOCAL, streaming=streaming)

        yield faces, client


def asking(text: str, message_id: str, task: Task | None = None, **more: Any) -> SendMessageRequest:
    message = Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)], **more)
    if task is not None:
        message.task_id = task.id
    return SendMessageRequest(message=message)


def at_once(request: SendMessageRequest) -> SendMessageRequest:
    request.configuration.CopyFrom(SendMessageConfiguration(return_immediately=True))
    return request


async def task_of(answers: AsyncIterator[StreamResponse]) -> Task:
    """Give the task with which a call that does not stream answers."""
    (answer,) = [answer async for answer in answers]
    return answer.task


async def begun(client: Client, message_id: str = "m-1") -> Task:
    return await task_of(client.send_message(at_once(asking("hi", message_id))))


def texts(task: Task) -> list[tuple[str, str]]:
    return [(a.artifact_id, "".join(p.text for p in a.parts)) for a in task.artifacts]


@over_each_wire
async def test_a_task_shows_each_message_as_it_was_sent(wire: Wire) -> None:
    def said(name: str, task: Task | None = None) -> SendMessageRequest:
        sent = asking("```\na\n```", name, task, metadata={"skillId": "x"})
        sent.message.parts.append(Part(text="Explain", metadata={"lang": "en"}))
        sent.message.extensions.append("https://example.com/ext")
        sent.message.parts.append(Part(raw=b"a: 1", filename="a.yml", media_type="text/yaml"))
        sent.message.parts.append(ParseDict({"data": {"b": [1, None]}}, Part()))
        return sent

    model = ListeningModel(SLOW, "{}", "Voilà.")
    async with agents(wire, model, Speaker()) as ([here, there], client):
        begun = await task_of((await client(here)).send_message(at_once(said("mine"))))
        ended = await task_of((await client(there)).send_message(said("more", begun)))
        read = await (await client(there)).get_task(GetTaskRequest(id=begun.id))
    names = ["mine", "more"]
    for task, expected in ((begun, names[:1]), (ended, names), (read, names)):
        assert [message.message_id for message in task.history] == expected
        for message in task.history:
            sent = said(message.message_id).message
            sent.task_id, sent.context_id = task.id, task.context_id
            assert message == sent
    assert '```\na\n```\nExplain\na: 1\n{"b":[1,null]}' in model.requests[0][-1].content


async def test_a_message_that_comes_while_the_answer_is_told_is_answered_in_the_same_task() -> None:
    speaker = Speaker("One.", ...)
    async with agents(USUAL, speaker, Speaker()) as ([here, there], client):
        task = await begun(await client(here))
        watching = asyncio.create_task(watched(await client(there, streaming=True), task))
        await speaker.has_stopped.wait()
        sent = await task_of(
            (await client(there)).send_message(at_once(asking("more", "m-2", task)))
        )
        assert sent.status.state == TaskState.TASK_STATE_WORKING
        assert [m.message_id for m in sent.history][1:] == ["m-2"]
        speaker.go.set()
        told = await watching
        ended = await (await client(here)).get_task(GetTaskRequest(id=task.id))
    assert texts(ended) == [("answer", "One."), ("answer-2", "One.")]
    assert told == {"answer": "One.", "answer-2": "One."}


async def watched(client: Client, task: Task) -> dict[str, str]:
    """Subscribe to a task, and put its artifacts together."""
    told: dict[str, str] = {}
    async for event in client.subscribe(SubscribeToTaskRequest(id=task.id)):
        if event.HasField("task"):
            told |= dict(texts(event.task))
        elif event.HasField("artifact_update"):
            artifact = event.artifact_update.artifact
            before = told.get(artifact.artifact_id, "") if event.artifact_update.append else ""
            text = "".join(part.text for part in artifact.parts)
            told[artifact.artifact_id] = before + text
    return told


async def test_a_message_that_is_sent_again_joins_once() -> None:
    async with agents(USUAL, ListeningModel(SLOW, "{}", "Done."), Speaker()) as (
        [here, there],
        client,
    ):
        task = await begun(await client(here))
        clients = [await client(at) for at in (here, there, there)]
        ended = await asyncio.gather(
            *(task_of(c.send_message(asking("more", "m-2", task))) for c in clients)
        )
        assert [len(one.history) for one in ended] == [2, 2, 2]
        task = await begun(await client(here), "m-1b")
        other = asking("something else", "m-3", task)
        await task_of((await client(there)).send_message(at_once(asking("more", "m-3", task))))
        with pytest.raises(InvalidParamsError, match="messageId"):
            await task_of((await client(there)).send_message(other))


async def test_a_task_whose_process_has_died_hears_it_from_its_next_owner() -> None:
    """Its owner is gone for good when the message comes."""
    models = [ListeningModel(SLOW, "{}", "One."), ListeningModel(SLOW, "{}", "Two.")]
    async with agents(USUAL, *models) as ([here, there], client):
        task = await begun(await client(here))
        await until(lambda: models[0].requests, 5)
        await here.house.runs.close()
        ended = await task_of((await client(there)).send_message(asking("more", "m-2", task)))
    assert texts(ended) == [("answer", "Two.")]
    assert any("more" in m.content for m in models[1].requests[-1])
