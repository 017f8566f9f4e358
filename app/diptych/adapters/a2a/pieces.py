"""Answers that an agent sends as many messages, where A2A has pieces of an artifact.

A message that answers a send is the whole answer, and the SDK ends the stream at it. Agno 3.1 tells
of a task first, and then sends each piece of its text as a message of that task.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.types import (
    Artifact,
    Message,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

_ARTIFACT_ID = "messages"
_ENDS = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)


async def joined(events: AsyncGenerator[StreamResponse]) -> AsyncGenerator[StreamResponse]:
    """Give events, with the messages of a task that was named before as pieces of an artifact.

    If the stream ends before the task does, they were its answer, as one message would be.
    """
    task_id, has_pieces, has_ended = "", False, False
    async with aclosing(events):
        async for event in events:
            if task_id and event.HasField("message"):
                yield _piece(event.message, task_id, appends=has_pieces)
                has_pieces = True
                continue
            task_id = task_id or _task_id(event)
            has_ended = has_ended or _state(event) in _ENDS
            yield event
    if has_pieces and not has_ended:
        status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        yield StreamResponse(status_update=TaskStatusUpdateEvent(task_id=task_id, status=status))


def _piece(message: Message, task_id: str, *, appends: bool) -> StreamResponse:
    artifact = Artifact(artifact_id=_ARTIFACT_ID, parts=message.parts)
    update = TaskArtifactUpdateEvent(task_id=task_id, artifact=artifact, append=appends)
    return StreamResponse(artifact_update=update)


def _task_id(event: StreamResponse) -> str:
    return event.task.id or event.status_update.task_id or event.artifact_update.task_id


def _state(event: StreamResponse) -> int:
    return event.task.status.state or event.status_update.status.state
