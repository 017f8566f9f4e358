"""A2A tasks whose pod dies, seen and cancelled by the SDK's client at the other pod."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from support.orders import Charges, Pace, answer
from support.pods import PodProcess, now
from support.scene import Scene, order_scene
from support.stack import until

COMPLETED, CANCELED = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_CANCELED
SLOW = Pace(reply=0.3, word=0.1)  # an answer takes some 4 s
USUAL = 12.0

pytestmark = pytest.mark.timeout(300)  # a test waits 90 s for its callers, and for its pods


@asynccontextmanager
async def client_of(pod: PodProcess) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=40) as http:
        card = await A2ACardResolver(http, pod.url).get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http)).create(card)


class Listener:
    """Hears of one task, and puts its answer together as the specification says."""

    def __init__(self) -> None:
        self.id, self.context, self.text = "", "", ""
        self.states: list[TaskState] = []

    @property
    def end(self) -> TaskState | None:
        return self.states[-1] if self.states and self.states[-1] in (COMPLETED, CANCELED) else None

    async def send(self, client: Client, text: str) -> None:
        """Give a task; returns when it is done, or the stream breaks."""
        said = Message(message_id=text, role=Role.ROLE_USER, parts=[Part(text=text)])
        with suppress(A2AClientError, httpx.HTTPError):
            await self._hear(client.send_message(SendMessageRequest(message=said)))

    async def subscribe(self, client: Client, task_id: str) -> None:
        await self._hear(client.subscribe(SubscribeToTaskRequest(id=task_id)))

    async def _hear(self, events: AsyncIterator[StreamResponse]) -> None:
        async for event in events:
            match event.WhichOneof("payload"):
                case "task":
                    self.id, self.context = event.task.id, event.task.context_id
                    self.text = answer_of(event.task)
                    self.states.append(event.task.status.state)
                case "artifact_update":
                    piece = event.artifact_update
                    text = "".join(part.text for part in piece.artifact.parts)
                    self.text = self.text + text if piece.append else text
                case "status_update":
                    self.states.append(event.status_update.status.state)


def answer_of(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def accepted(on: Scene, sender: Listener, text: str) -> None:
    """Note for the reckoning that a task was accepted."""
    event = {"t": now(), "actor": text, "kind": "accepted", "text": text, "seconds": USUAL}
    on.history.append({**event, "run": sender.id, "session": sender.context})


async def test_tasks_whose_pod_was_killed_are_finished_and_told_by_the_other(
    tools: Charges,
) -> None:
    async with (
        order_scene(tools, pace=SLOW) as on,
        client_of(on.pods[0]) as first,
        client_of(on.pods[1]) as second,
    ):
        begun = {name: Listener() for name in ("a2a text", "a2a tool", "a2a cancel")}
        text, tool, cancelled = begun.values()
        near, afar = Listener(), [Listener() for _ in begun]
        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(text.send(first, "a2a text"))
            await until(lambda: len(text.text) > 20, 30)
            group.create_task(near.subscribe(second, text.id))
            for name, sender in list(begun.items())[1:]:
                group.create_task(sender.send(first, name))
            await until(lambda: all(sender.id for sender in begun.values()) and near.id, 30)
            await until(lambda: "charge a2a tool" in str(tools.history()), 30)
            on.pods[0].kill()
            on.trouble("kill -9", USUAL)
            for sender, other in zip(begun.values(), afar, strict=True):
                group.create_task(other.subscribe(second, sender.id))
            task = await second.get_task(GetTaskRequest(id=text.id))
            assert task.status.state == TaskState.TASK_STATE_WORKING
            assert answer("a2a text").startswith(answer_of(task))
            assert len(answer_of(task)) >= len(text.text)
            await second.cancel_task(CancelTaskRequest(id=cancelled.id))
        for (name, sender), other in zip(begun.items(), afar, strict=True):
            accepted(on, sender, name)
            task = await second.get_task(GetTaskRequest(id=sender.id))
            expected = CANCELED if sender is cancelled else COMPLETED
            assert task.status.state == other.end == expected, name
            assert answer_of(task) == other.text
            assert sender is cancelled or other.text == answer(name)
        assert (near.end, near.text) == (COMPLETED, answer("a2a text"))
        assert {sender.end for sender in begun.values()} == {None}, "the pod had not died in time"
        logs = await on.reckon()
    assert [sum(f.event == "owner_changed" for f in logs[s.id]) for s in begun.values()] == [1] * 3
    unknown = [f.body["content"] for f in logs[tool.id] if f.event == "tool_error"]
    assert [words.partition(":")[0] for words in unknown] == ["outcome"]
