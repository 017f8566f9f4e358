"""Answers that an agent sends as many messages, where A2A has pieces of an artifact.

A message that answers a send is the whole answer, and the SDK ends the stream at it. Agno 3.1 tells
of a task first, and then sends each piece of its text as a message of that task.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.types import (
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from diptych.a2a.content import Content, last_words
from diptych.a2a.progress import INTERRUPTED_STATES, TERMINAL_STATES

_ARTIFACT_ID = "messages"
_SETTLED_STATES = TERMINAL_STATES | INTERRUPTED_STATES


async def joined(events: AsyncGenerator[StreamResponse]) -> AsyncGenerator[StreamResponse]:
    """Give events, with the messages of a task that was named before as pieces of an artifact.

    If the stream ends before the task is settled, they were its answer, as one message would be.
    """
    task_id, is_settled = "", False
    said: Content | None = None  # by all pieces; None before the first
    async with aclosing(events):
        async for event in events:
            if task_id and event.HasField("message"):
                yield _piece(event.message, task_id, appends=said is not None)
                said = said or Content()
                said.add(event.message.parts)
                continue
            task_id = task_id or _task_id(event)
            is_settled = _state(event) in _SETTLED_STATES if _state(event) else is_settled
            if said is not None and event.HasField("task"):
                _keep_words(event.task, said.text)
            yield event
    if said is not None and not is_settled:
        status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        yield StreamResponse(status_update=TaskStatusUpdateEvent(task_id=task_id, status=status))


def _piece(message: Message, task_id: str, *, appends: bool) -> StreamResponse:
    artifact = Artifact(artifact_id=_ARTIFACT_ID, parts=message.parts)
    update = TaskArtifactUpdateEvent(task_id=task_id, artifact=artifact, append=appends)
    return StreamResponse(artifact_update=update)


def _keep_words(task: Task, said: str) -> None:
    """Put into a task, which replaces all that came before it, what was said in pieces.

    Its history may have the same, without the reasoning that some agents send as pieces, too. A
    task whose artifacts have a text has its answer there.
    """
    if any(part.HasField("text") for artifact in task.artifacts for part in artifact.parts):
        return
    words = Part(text=last_words(task.history) or said)
    task.artifacts.insert(0, Artifact(artifact_id=_ARTIFACT_ID, parts=[words]))


def _task_id(event: StreamResponse) -> str:
    return event.task.id or event.status_update.task_id or event.artifact_update.task_id


def _state(event: StreamResponse) -> int:
    return event.task.status.state or event.status_update.status.state
