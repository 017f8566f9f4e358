"""A run's records as an A2A task: as a snapshot, or as the updates of a stream.

Both are pure views of the same records.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import orjson
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
from google.protobuf.json_format import ParseDict

from diptych.a2a import extension
from diptych.a2a.events import notice_event, record_event
from diptych.a2a.extension import TaskReport, report_value, under_uri
from diptych.a2a.message import as_sent, read_notes
from diptych.a2a.parts import answer_parts
from diptych.budgets.recorded_use import RecordedUse
from diptych.core.codec import Record, is_terminal
from diptych.core.messages import JSON, JSONObject
from diptych.core.text import well_formed
from diptych.core.waits import asked_fields, note_waits, open_waits
from diptych.http.views import timestamp
from diptych.ports import Item
from diptych.ports.entries import RunEntry
from diptych.ports.ids import public_id
from diptych.runs.answers import answers_so_far, end_code

ANSWER = "answer"
"""The id of a task's artifact; that of a further turn ends with the turn's number."""

TASK_STATES: Mapping[str, TaskState] = {
    "queued": TaskState.TASK_STATE_SUBMITTED,
    "running": TaskState.TASK_STATE_WORKING,
    "input-required": TaskState.TASK_STATE_INPUT_REQUIRED,
    "completed": TaskState.TASK_STATE_COMPLETED,
    "max_steps": TaskState.TASK_STATE_FAILED,
    "failed": TaskState.TASK_STATE_FAILED,
    "aborted": TaskState.TASK_STATE_CANCELED,
}
"""The state of a task for each status of a run (loop.md §2)."""

_QUEUED_EVENT = "user_message"
"""The only type of event on record while a run waits for its session; any other one is work."""

Update = TaskStatusUpdateEvent | TaskArtifactUpdateEvent


def submitted_task(entry: RunEntry, sent: Message, history_length: int | None = None) -> Task:
    """Return a new task that has only the sent message."""
    return Task(
        id=entry.run_id,
        context_id=entry.session_id,
        status=_status("queued", entry.created),
        history=_newest([_echo(entry, sent)], history_length),
    )


def task_snapshot(
    entry: RunEntry,
    records: Sequence[Record],
    history_length: int | None = None,
    schema: JSONObject | None = None,
) -> Task:
    """Return the whole task with its last `history_length` messages (None: all).

    The state comes from the records, as the entry may be older. `schema` is the agent's output
    schema.
    """
    answers = answers_so_far(records)
    ends = [r for r in records if r.event_type == "agent_response"]
    history = [_user_message(r) for r in records if r.event_type == _QUEUED_EVENT]
    return Task(
        id=entry.run_id,
        context_id=entry.session_id,
        status=_latest_status(entry, records),
        artifacts=[
            _artifact(turn, well_formed(text), end, schema)
            for turn, (text, end) in enumerate(zip_longest(answers, ends), 1)
            if text
        ],
        history=_newest(history, history_length),
        metadata=under_uri(report_value(_report(records))),
    )


def _report(records: Sequence[Record]) -> TaskReport:
    """Return a task's usage so far, and its failure if it ended with one."""
    use, code = RecordedUse(records), end_code(records[-1]) if records else ""
    return TaskReport(use.tree_usage, code, use.used)


class TaskUpdates:
    """Turns a task's records, in order, into a stream's updates.

    The answer is sent in pieces. A piece with `append` false starts over: after an `answer_reset`,
    and with `ends_whole` at the end, where the whole answer is repeated. Without `has_pieces` the
    answer is sent only at its end. With `tells_events` each record is also sent as an extension
    event.
    """

    def __init__(
        self,
        entry: RunEntry,
        *,
        tells_events: bool = False,
        ends_whole: bool = False,
        has_pieces: bool = True,
        schema: JSONObject | None = None,
    ) -> None:
        self._entry = entry
        self._schema = schema
        self._tells_events = tells_events
        self._ends_whole = ends_whole
        self._has_pieces = has_pieces
        self._told = _status("queued", entry.created)  # the newest status
        self._is_working = False
        self._sent_chars = 0  # of the answer of this turn, since it (last) began
        self._turn = 1
        self._waiting: set[str] = set()  # calls that wait for somebody
        self._use = RecordedUse()

    def of(self, items: Iterable[Item]) -> Iterable[Update]:
        """Yield the updates for the next records and notices."""
        for item in items:
            if isinstance(item, Record):
                yield from self._of_record(item)
            elif self._tells_events and (event := notice_event(item)):
                yield self._event_update(event)

    def events_of(self, records: Iterable[Record]) -> Iterable[Update]:
        """Yield only the events of records that a snapshot covered; callers drop duplicates."""
        if self._tells_events:
            yield from (self._event_update(e) for e in map(record_event, records) if e)

    def _of_record(self, record: Record) -> Iterable[Update]:
        self._use.add(record)
        yield from self.events_of([record])
        if is_terminal(record):
            report = TaskReport(self._use.tree_usage, end_code(record), self._use.used)
            yield self._status_update(_final_status(record), report)
            return
        if not self._is_working and record.event_type != _QUEUED_EVENT:
            self._is_working = True
            yield self._status_update(_status("running", record.timestamp))
        yield from self._waiting_updates(record)
        match record.event_type:
            case "text" if self._has_pieces:
                yield self._artifact_update(_text(record.content))
            case "agent_response":  # what was not streamed, often nothing: the end of the artifact
                if self._ends_whole:
                    self._sent_chars = 0
                rest = _text(record.content)[self._sent_chars :]
                yield self._artifact_update(rest, record)
                self._sent_chars = 0
                self._turn += 1
            case "answer_reset":
                self._sent_chars = 0

    def _waiting_updates(self, record: Record) -> Iterable[Update]:
        """Yield a status for each call that starts to wait, and when none waits any more."""
        was_open = bool(self._waiting)
        note_waits(self._waiting, record.event_type, record.metadata)
        if record.event_type in {"approval_requested", "input_requested"}:
            yield self._status_update(_waiting_status(record))
        elif was_open and not self._waiting:
            yield self._status_update(_status("running", record.timestamp))

    def _artifact_update(self, text: str, end: Record | None = None) -> TaskArtifactUpdateEvent:
        appends = self._sent_chars > 0
        self._sent_chars += len(text)
        return TaskArtifactUpdateEvent(
            task_id=self._entry.run_id,
            context_id=self._entry.session_id,
            artifact=_artifact(self._turn, text, end, self._schema),
            append=appends,
            last_chunk=end is not None,
        )

    def _event_update(self, event: JSONObject) -> TaskStatusUpdateEvent:
        """Return an extension event in an otherwise empty update, with the usage so far."""
        about = {**event, **report_value(TaskReport(self._use.tree_usage, used=self._use.used))}
        update = self._status_update(self._told)
        update.metadata.update(under_uri(about))
        return update

    def _status_update(
        self, status: TaskStatus, report: TaskReport | None = None
    ) -> TaskStatusUpdateEvent:
        self._told = status
        metadata = under_uri(report_value(report)) if report else None
        return TaskStatusUpdateEvent(
            task_id=self._entry.run_id,
            context_id=self._entry.session_id,
            status=status,
            metadata=metadata,
        )


def _artifact(turn: int, text: str, end: Record | None, schema: JSONObject | None) -> Artifact:
    """Return an answer or a piece of it.

    `end` is the answer's record, for the last piece. A typed answer has its value, and the files
    in it, beside its text; a truncated one is marked.
    """
    artifact_id = ANSWER if turn == 1 else f"{ANSWER}-{turn}"
    artifact = Artifact(artifact_id=artifact_id)
    if end is not None and end.metadata.get("is_json"):
        artifact.parts.extend(answer_parts(_text(end.content), schema))
        artifact.parts[-1].text = text  # perhaps only what was not streamed before
    else:
        artifact.parts.append(Part(text=text))
    if end is not None and (reason := end.metadata.get("finish_reason", "stop")) != "stop":
        artifact.extensions.append(extension.URI)
        artifact.metadata.update(under_uri({"finish_reason": str(reason)}))
    return artifact


def _latest_status(entry: RunEntry, records: Sequence[Record]) -> TaskStatus:
    if not records:
        return _status("queued", entry.created)
    newest = records[-1]
    if is_terminal(newest):
        return _final_status(newest)
    if asked := open_waits(records):
        return _waiting_status(asked[-1].requested)
    is_new = all(record.event_type == _QUEUED_EVENT for record in records)
    is_queued = is_new and entry.status == "queued"
    return _status("queued" if is_queued else "running", newest.timestamp)


def _waiting_status(requested: Record) -> TaskStatus:
    """Return the status of a task with a call that waits for approval or input.

    Its message says so in a text part and in a data part; see `replies` for the answer.
    """
    status = _status("input-required", requested.timestamp)
    about: Mapping[str, Any] = requested.metadata
    call_id, expires_at = about["call_id"], timestamp(about["expires_at"])
    value = {"call_id": call_id, "expires_at": expires_at, **asked_fields(requested)}
    if requested.event_type == "input_requested":
        text = f"the call {call_id} asks: {_text(requested.content)}"
        if about["kind"] == "sign_in":
            status.state = TaskState.TASK_STATE_AUTH_REQUIRED
    else:
        value["kind"] = "approval"
        why = f": {value['reason']}" if value["reason"] else ""
        text = f"the call {call_id} waits for approval{why}"
        text += f"\n{orjson.dumps(requested.content).decode()}"
    status.message.CopyFrom(_message(requested, Role.ROLE_AGENT, _text(text)))
    part = Part(media_type="application/json")
    ParseDict(value, part.data)
    status.message.parts.append(part)
    return status


def _final_status(record: Record) -> TaskStatus:
    """Return the status for a terminal record, with the reason unless it succeeded."""
    status = _status(record.event_type, record.timestamp)
    reason = _text(record.content)
    if reason and record.event_type != "completed":
        status.message.CopyFrom(_message(record, Role.ROLE_AGENT, reason))
    return status


def milliseconds(seconds: float) -> int:
    """Return a time in milliseconds, the precision of a task's status."""
    return int(seconds * 1000)


def _status(run_status: str, seconds: float) -> TaskStatus:
    status = TaskStatus(state=TASK_STATES[run_status])
    status.timestamp.FromMilliseconds(milliseconds(seconds))
    return status


def _user_message(record: Record) -> Message:
    """Return a caller's message as it was sent; for other protocols only its text."""
    sent = _message(record, Role.ROLE_USER, "")
    del sent.parts[:]
    sent.MergeFrom(read_notes(record.metadata.get("notes", {}), _text(record.content)))
    return sent


def _message(record: Record, role: Role, text: str) -> Message:
    return Message(
        message_id=str(record.metadata.get("message_id", f"{record.run_id}-{record.seq}")),
        task_id=record.run_id,
        context_id=public_id(record.session_id),
        role=role,
        parts=[Part(text=text)],
    )


def _newest(history: Sequence[Message], length: int | None) -> Sequence[Message]:
    """Return the newest `length` messages of a history (specification, 3.2.4)."""
    if length is None:
        return history
    return history[-length:] if length > 0 else ()


def _echo(entry: RunEntry, sent: Message) -> Message:
    """Return the caller's message as sent, with its run's task and context ids."""
    message = as_sent(sent)
    message.task_id, message.context_id = entry.run_id, entry.session_id
    return message


def _text(content: JSON) -> str:
    return well_formed(content) if isinstance(content, str) else ""
