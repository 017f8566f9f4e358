"""A run's records as an A2A task: whole, or as the updates of a stream.

Pure views of the record, so that what a stream told and what `GetTask` shows cannot differ.

Not here: the protocol's methods and errors (`http.a2a`).
"""

from collections.abc import Iterable, Mapping, Sequence

from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

from diptych.loop.codec import TERMINAL, Record
from diptych.loop.messages import JSON
from diptych.loop.text import well_formed
from diptych.ports.entries import RunEntry
from diptych.runtime.answers import answers_so_far

ANSWER = "answer"
"""The id of a task's artifact; further turns of a task that was sent messages have their number."""

STATES: Mapping[str, TaskState] = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "max_steps": TaskState.TASK_STATE_FAILED,
    "failed": TaskState.TASK_STATE_FAILED,
    "aborted": TaskState.TASK_STATE_CANCELED,
}
"""The state of a task for each status of a run (loop.md §2)."""

ASKED = "user_message"
"""The record with which a run waits for its session's turn; any other one is work."""

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent


def submitted(entry: RunEntry, asked: Message, history_length: int | None = None) -> Task:
    """Give the task as it is before anything of its run is on record."""
    return Task(
        id=entry.run_id,
        context_id=entry.session_id,
        status=_status("queued", entry.created),
        history=_last([_echo(entry, asked)], history_length),
    )


def snapshot(
    entry: RunEntry,
    records: Sequence[Record],
    history_length: int | None = None,
    asked: Message | None = None,
) -> Task:
    """Give the whole task; `history_length` is how many of the last messages it shows (None: all).

    The records decide the state, not the entry, which may have been read at another moment. Who
    sent `asked` finds it in the history under its own id.
    """
    answers = enumerate(answers_so_far(records), 1)
    history = [_user_message(r) for r in records if r.event_type == ASKED]
    if asked is not None:
        history[:1] = [_echo(entry, asked)]
    return Task(
        id=entry.run_id,
        context_id=entry.session_id,
        status=_latest_status(entry, records),
        artifacts=[_artifact(turn, well_formed(text)) for turn, text in answers if text],
        history=_last(history, history_length),
    )


class Telling:
    """What a stream still has to say: fed with records, gives the updates they mean.

    The answer is told piece by piece and never again whole; a piece with `append` false starts it
    over, which a recorded `answer_reset` demands.
    """

    def __init__(self, entry: RunEntry) -> None:
        self._entry = entry
        self._working = False
        self._told = 0  # characters of the answer since it (last) began
        self._turn = 1

    def updates(self, records: Iterable[Record]) -> list[Update]:
        told: list[Update] = []
        for record in records:
            told.extend(self._of(record))
        return told

    def _of(self, record: Record) -> Iterable[Update]:
        if record.event_type in TERMINAL:
            yield self._status(_end(record))
            return
        if not self._working and record.event_type != ASKED:
            self._working = True
            yield self._status(_status("running", record.timestamp))
        match record.event_type:
            case "text":
                yield self._piece(_text(record.content))
            case "agent_response":  # what was not streamed, often nothing: the end of the artifact
                yield self._piece(_text(record.content)[self._told :], is_last=True)
                self._told = 0
                self._turn += 1
            case "answer_reset":
                self._told = 0

    def _piece(self, text: str, *, is_last: bool = False) -> TaskArtifactUpdateEvent:
        appends = self._told > 0
        self._told += len(text)
        return TaskArtifactUpdateEvent(
            task_id=self._entry.run_id,
            context_id=self._entry.session_id,
            artifact=_artifact(self._turn, text),
            append=appends,
            last_chunk=is_last,
        )

    def _status(self, status: TaskStatus) -> TaskStatusUpdateEvent:
        return TaskStatusUpdateEvent(
            task_id=self._entry.run_id, context_id=self._entry.session_id, status=status
        )


def _artifact(turn: int, text: str) -> Artifact:
    artifact_id = ANSWER if turn == 1 else f"{ANSWER}-{turn}"
    return Artifact(artifact_id=artifact_id, parts=[Part(text=text)])


def _latest_status(entry: RunEntry, records: Sequence[Record]) -> TaskStatus:
    if not records:
        return _status("queued", entry.created)
    newest = records[-1]
    if newest.event_type in TERMINAL:
        return _end(newest)
    waits = all(record.event_type == ASKED for record in records) and entry.status == "queued"
    return _status("queued" if waits else "running", newest.timestamp)


def _end(record: Record) -> TaskStatus:
    """Give the status that a terminal record means; all but success say why, in a message."""
    status = _status(record.event_type, record.timestamp)
    reason = _text(record.content)
    if reason and record.event_type != "completed":
        status.message.CopyFrom(_said(record, Role.ROLE_AGENT, reason))
    return status


def milliseconds(seconds: float) -> int:
    """Give a time as a task's status has it."""
    return int(seconds * 1000)


def _status(run_status: str, seconds: float) -> TaskStatus:
    status = TaskStatus(state=STATES[run_status])
    status.timestamp.FromMilliseconds(milliseconds(seconds))
    return status


def _user_message(record: Record) -> Message:
    return _said(record, Role.ROLE_USER, _text(record.content))


def _said(record: Record, role: Role, text: str) -> Message:
    return Message(
        message_id=str(record.metadata.get("message_id", f"{record.run_id}-{record.seq}")),
        task_id=record.run_id,
        context_id=record.session_id,
        role=role,
        parts=[Part(text=text)],
    )


def _last(history: Sequence[Message], length: int | None) -> Sequence[Message]:
    """Cut a history to its last `length` messages, as the specification asks (3.2.4)."""
    if length is None:
        return history
    return history[-length:] if length > 0 else ()


def _echo(entry: RunEntry, asked: Message) -> Message:
    """Give the caller's message back under its own id, without the context it came with."""
    return Message(
        message_id=asked.message_id,
        task_id=entry.run_id,
        context_id=entry.session_id,
        role=Role.ROLE_USER,
        parts=[part for part in asked.parts if part.HasField("text")],
    )


def _text(content: JSON) -> str:
    return well_formed(content) if isinstance(content, str) else ""
