"""What another agent has said of a task so far, and what that means as an answer.

Not here: how it was asked or heard (`errand`).
"""

import json
from collections.abc import Iterable

from a2a.types import Artifact, Message, Part, StreamResponse, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict

from diptych.errors import DelegationError
from diptych.loop.messages import JSON, CallOutput

KEPT_LIMIT = 4 * 2**20  # characters of an answer that are kept; the runner cuts it further
WORDS_LIMIT = 2_000  # characters of a reason

ENDED = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
WAITING = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})


class TaskProgress:
    """The task of one delegation, put together from what its agent sends."""

    def __init__(self) -> None:
        self.task_id = ""
        self._state = TaskState.TASK_STATE_UNSPECIFIED
        self._words = ""  # of the last status
        self._reply: _Pieces | None = None
        self._artifacts: dict[str, _Pieces] = {}

    @property
    def is_over(self) -> bool:
        return self._reply is not None or self._state in ENDED or self.is_waiting

    @property
    def is_waiting(self) -> bool:
        """The agent wants something from us before it goes on."""
        return self._state in WAITING

    def take(self, event: StreamResponse) -> str:
        """Take in what was sent; gives the text of the answer that is new."""
        match event.WhichOneof("payload"):
            case "task":
                return self.take_task(event.task)
            case "message":
                return self._take_reply(event.message)
            case "status_update":
                self.task_id = self.task_id or event.status_update.task_id
                self._take_status(event.status_update.status)
                return ""
            case "artifact_update":
                update = event.artifact_update
                self.task_id = self.task_id or update.task_id
                return self._take_piece(update.artifact, appends=update.append)
            case _:
                return ""

    def take_task(self, task: Task) -> str:
        """Take in a whole task, which replaces what was heard of it before."""
        self.task_id = task.id
        self._take_status(task.status)
        before = self._text()
        self._artifacts.clear()
        for artifact in task.artifacts:
            self._take_piece(artifact, appends=False)
        return self._text().removeprefix(before)

    def answer(self, name: str) -> CallOutput:
        """Give the answer of a task that is over, of the agent `name`. Raises `DelegationError`."""
        if self._reply is not None:
            return CallOutput(self._reply.text, self._reply.value)
        match self._state:
            case TaskState.TASK_STATE_COMPLETED:
                values = [p.value for p in self._artifacts.values() if p.value is not None]
                return CallOutput(self._text() or self._words, values[-1] if values else None)
            case TaskState.TASK_STATE_REJECTED:
                problem = "rejected the task"
            case TaskState.TASK_STATE_CANCELED:
                problem = "canceled the task"
            case TaskState.TASK_STATE_INPUT_REQUIRED:
                problem = "asked for input"
            case TaskState.TASK_STATE_AUTH_REQUIRED:
                problem = "asked for authorization"
            case _:
                problem = "failed"
        reason = self._words[:WORDS_LIMIT] or "it gave no reason"
        raise DelegationError("failed", f"agent {name} {problem}: {reason}")

    def _take_status(self, status: TaskStatus) -> None:
        self._state = status.state
        if status.HasField("message"):
            self._words = _pieces(status.message.parts).text

    def _take_reply(self, message: Message) -> str:
        self._reply = _pieces(message.parts)
        return self._reply.text

    def _take_piece(self, artifact: Artifact, *, appends: bool) -> str:
        if not appends or artifact.artifact_id not in self._artifacts:
            self._artifacts[artifact.artifact_id] = _Pieces()
        return self._artifacts[artifact.artifact_id].add(artifact.parts)

    def _text(self) -> str:
        return "\n\n".join(text for p in self._artifacts.values() if (text := p.text))


class _Pieces:
    """The parts of one artifact or message: streamed pieces of a text follow without a break."""

    def __init__(self) -> None:
        self.value: JSON = None
        self._texts: list[str] = []
        self._size = 0

    @property
    def text(self) -> str:
        if not self._texts and self.value is not None:
            return json.dumps(self.value, ensure_ascii=False, sort_keys=True)
        return "".join(self._texts)

    def add(self, parts: Iterable[Part]) -> str:
        """Take parts in, as long as there is room; gives their text."""
        new: list[str] = []
        for part in parts:
            if part.HasField("data"):
                self.value = _plain(MessageToDict(part.data))
            elif (text := _shown(part)) and self._size <= KEPT_LIMIT:
                self._size += len(text)
                new.append(text)
        self._texts += new
        return "".join(new)


def _pieces(parts: Iterable[Part]) -> _Pieces:
    pieces = _Pieces()
    pieces.add(parts)
    return pieces


def _shown(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return str(part.text)
        case "url":
            return f"[{part.filename or 'a file'}: {part.url}]"
        case "raw":
            return f"[{part.filename or 'a file'} of {len(part.raw)} bytes, not shown]"
        case _:
            return ""


def _plain(value: JSON) -> JSON:
    """Undo what protobuf does to whole numbers: it knows only floats."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value
